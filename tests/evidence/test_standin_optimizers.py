"""Recorded runs of optimizers with kernels of their own: every phase equal, on every rung."""

import json

import pytest

from tests.evidence.test_standin import STANDIN, accuracy

RECORDINGS = sorted(STANDIN.glob("runs-optimizers-*.json"))


@pytest.mark.parametrize("first", range(len(RECORDINGS)), ids=[p.stem for p in RECORDINGS])
def test_every_fourth_run_is_equal_to_the_byte(first):
    # All of them are in docs/accuracy.md; each recording gives other runs here.
    for row in accuracy["compare"](RECORDINGS[first], first=2 * first, every=4):
        assert all(row.exact.values()), (accuracy["label"](row.plan), row.off)


def test_recordings_cover_every_family_that_runs_on_a_gpu():
    runs = [run["plan"] for path in RECORDINGS for run in json.loads(path.read_text())["runs"]]
    optimizers = {plan["optim"] for plan in runs}
    assert {"memcalc.adamw8bit", "memcalc.adam8bit", "memcalc.adamw_bf16"} <= optimizers
    for family in ("adamw", "lion", "ademamix", "lamb", "lars", "sgd", "rmsprop", "adagrad"):
        assert any(family in name for name in optimizers), family
    assert any("paged" in name for name in optimizers)
    for setting in ("resume", "optim_in_backward", "checkpointing"):
        assert {plan[setting] for plan in runs} == {True, False}, setting
