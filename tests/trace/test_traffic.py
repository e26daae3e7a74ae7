"""What a rank sends in a step, against what its wrappers are known to send."""

import json

import pytest

import memcalc
from memcalc.catalog import models

SMALL = {"n_layer": 2, "n_embd": 64, "n_head": 2, "vocab_size": 1000}


@pytest.fixture
def sent(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({**models.find("gpt2").config, **SMALL}))

    def of(**settings):
        found = memcalc.estimate(str(tmp_path), batch=2, seq=16, **settings)
        by_kind = {(one.collective, one.ranks): one.bytes for one in found.sent}
        return found.parameters * 4, by_kind

    return of


def test_one_gpu_sends_nothing(sent):
    assert sent()[1] == {}


def test_ddp_reduces_all_gradients_once_a_step(sent):
    size, by_kind = sent(devices=4, parallel="ddp", grad_accum=2)
    assert by_kind == {("all-reduce", 4): 2 * size * 3 // 4}


@pytest.mark.nightly
def test_what_each_rank_updates_is_sent_to_all(sent):
    size, by_kind = sent(devices=2, parallel="zero1")
    assert by_kind == {("all-reduce", 2): size, ("broadcast", 2): size}


@pytest.mark.nightly
def test_copies_of_shards_reduce_what_they_scattered(sent):
    # Sizes divide by two, so that no shard is padded.
    size, by_kind = sent(devices=4, parallel="hsdp=2x2")
    assert by_kind["reduce-scatter", 2] == size // 2
    assert by_kind["all-reduce", 2] == size // 2


@pytest.mark.nightly
def test_the_first_fully_sharded_wrapper_sends_what_the_second_does(sent):
    first, second = (sent(devices=2, parallel=name)[1] for name in ("fsdp1", "fsdp2"))
    assert first.keys() == second.keys()
    # Its flat parameters are padded to a multiple of both ranks and 16 bytes.
    assert all(0 <= first[key] - second[key] < 4096 for key in first)
