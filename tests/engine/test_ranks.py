"""One process as one rank of many: what wrappers take, what is sent, which rank is told of."""

import pytest

import memcalc
from memcalc.errors import UsageError
from memcalc.records.trace import Component

MODEL = "distilbert-base-cased"
PARAMETERS = 65_783_042


def estimate(**settings):
    return memcalc.estimate(MODEL, batch=2, seq=64, gpu="A100-80GB", **settings)


def test_ddp_holds_a_bucket_for_each_gradient_and_reduces_all_of_them():
    found = estimate(devices=2)
    assert found.components[Component.COMMUNICATION] >= 4 * PARAMETERS
    sent = {(one.collective, one.ranks): one for one in found.sent}
    assert sent["all-reduce", 2].bytes == 4 * PARAMETERS


def test_fsdp2_holds_a_share_and_gathers_blocks():
    found = estimate(devices=2, parallel="fsdp2")
    alone = estimate()
    weights = found.components[Component.WEIGHTS]
    assert weights == pytest.approx(alone.components[Component.WEIGHTS] / 2, rel=0.01)
    assert {one.collective for one in found.sent} >= {"all-gather", "reduce-scatter"}


def test_zero1_broadcasts_what_each_rank_has_updated():
    sent = {one.collective: one for one in estimate(devices=2, parallel="zero1").sent}
    positions = 512 * 8  # a buffer, which DDP broadcasts before each forward
    assert sent["broadcast"].bytes == 4 * PARAMETERS + positions


@pytest.mark.nightly
def test_ranks_that_hold_unequal_shards_are_both_run_and_the_larger_one_is_told_of():
    found = estimate(devices=3, parallel="fsdp2")
    (said,) = [text for text in found.assumptions if text.startswith("this is rank")]
    assert said.startswith("this is rank 0 of 3; rank 2 needs ")
    assert estimate(devices=3, parallel="fsdp2", rank=2).peak.requested <= found.peak.requested


@pytest.mark.nightly
def test_replicas_of_shards_talk_in_groups_of_their_own_size():
    talked = {(one.collective, one.ranks) for one in estimate(parallel="hsdp=2x3").sent}
    assert {("all-gather", 3), ("reduce-scatter", 3), ("all-reduce", 2)} <= talked


def test_the_card_is_the_plans_where_a_package_asks_for_it_as_it_is_imported(monkeypatch):
    # The session's warm process has imported it; peft imports bitsandbytes.
    monkeypatch.setenv("MEMCALC_WARM", "")
    found = memcalc.estimate(MODEL, batch=2, seq=64, gpu="H200", lora="r=4", devices=2)
    # cuBLAS's workspaces are a quarter of this on other cards.
    assert found.components[Component.WORKSPACES] % 33_554_432 < 1 << 20


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"devices": 2, "parallel": "pp=2"}, "not verified against PyTorch"),
        ({"devices": 3, "parallel": "tp=2"}, "their product|cannot be divided"),
        ({"devices": 2, "rank": 2}, "they count from 0"),
        ({"parallel": "tp=2"}, "no self_attn.q_proj"),
    ],
)
def test_what_a_layout_does_not_take_is_one_sentence(settings, words):
    with pytest.raises(UsageError, match=words):
        estimate(**settings)
