"""Recorded runs by flash-attn's own host code against their estimates, which have it not."""

import json

import pytest

from tests.evidence.test_standin import STANDIN, accuracy

RECORDED, RANKS = (next(STANDIN.glob(f"{name}-torch*.json")) for name in ("flash", "flash-ranks"))


def test_a_run_of_grouped_heads_is_equal_in_every_phase_on_every_rung():
    (row,) = accuracy["compare"](RECORDED, first=0, every=1 << 20)
    assert all(row.exact.values()), (accuracy["label"](row.plan), row.off)


@pytest.mark.nightly
@pytest.mark.parametrize("path", [RECORDED, RANKS], ids=lambda path: path.stem)
def test_every_run_is_equal_in_every_phase_on_every_rung(path):
    if path is RANKS:
        pytest.importorskip("deepspeed")
    for row in accuracy["compare"](path):
        assert all(row.exact.values()), (accuracy["label"](row.plan), row.off)


def test_recordings_cover_what_they_claim():
    plans = [run["plan"] for run in json.loads(RECORDED.read_text())["runs"]]
    assert len(plans) >= 10
    assert {plan["attention"] for plan in plans} == {"flash_attention_2"}
    assert {plan["loop"] for plan in plans} >= {"plain", "trainer"}
    assert {plan["precision"] for plan in plans} >= {"bf16", "fp16", "amp-bf16", "amp-fp16"}
    assert any(plan["quant"] for plan in plans)
    assert any(plan["checkpointing"] for plan in plans)
