"""Recorded runs with Liger's kernels against their estimates; liger-kernel must be there."""

import json

import pytest

from tests.evidence.test_standin import STANDIN, accuracy

ALONE, RANKS = (next(STANDIN.glob(f"{name}-torch*.json")) for name in ("liger", "liger-ranks"))


def plans(path):
    return [run["plan"] for run in json.loads(path.read_text())["runs"]]


def test_a_run_with_a_fused_loss_is_equal_in_every_phase_on_every_rung():
    pytest.importorskip("liger_kernel")
    (row,) = accuracy["compare"](ALONE, first=0, every=1 << 20)
    assert all(row.exact.values()), (accuracy["label"](row.plan), row.off)


@pytest.mark.nightly
@pytest.mark.parametrize("path", [ALONE, RANKS], ids=lambda path: path.stem)
def test_every_run_is_equal_in_every_phase_on_every_rung(path):
    pytest.importorskip("liger_kernel")
    for row in accuracy["compare"](path):
        assert all(row.exact.values()), (accuracy["label"](row.plan), row.off)


def test_recordings_cover_what_they_claim():
    alone, ranks = plans(ALONE), plans(RANKS)
    assert all(plan["liger"] for plan in (*alone, *ranks))
    assert len({plan["model"] for plan in alone}) >= 10
    assert {"plain", "accelerate", "trainer"} == {plan["loop"] for plan in alone}
    assert {"fp32", "bf16", "amp-bf16", "amp-fp16"} == {plan["precision"] for plan in alone}
    assert any(plan["lora"] for plan in alone)
    assert any(plan["quant"] for plan in alone)
    assert {plan["checkpointing"] for plan in alone} == {True, False}
    assert {plan["parallel"] for plan in ranks} == {None, "fsdp1", "fsdp2", "zero1"}
    assert {plan["quant"] for plan in ranks} == {None, "nf4", "nf4-dq"}
