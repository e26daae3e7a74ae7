"""Recorded single ranks of runs over several GPUs, against runs over the stub driver.

Some of the smallest models by default, all of them at night.
"""

import pytest

from memcalc.files.artifact import decode
from memcalc.records.plan import Plan
from memcalc.workload import layouts
from tests.evidence.judged import STANDIN, all_of, runs, sample

(RECORDING,) = STANDIN.glob("parallel-*.json")
PLANS = [decode(Plan, run["plan"]) for run in runs(RECORDING)]


def smallest():
    """Of each layout a run of the smallest models."""
    found, seen = [], set()
    for index, plan in enumerate(PLANS):
        name = layouts.spread(plan).layout
        if plan.model in ("distilbert-base-cased", "t5-small") and name not in seen:
            seen.add(name)
            found.append(index)
    return found


def test_ranks_of_small_models_are_met(forked):
    sample(forked, RECORDING, smallest())


@pytest.mark.nightly
def test_all_ranks_are_equal_in_every_phase_on_every_rung():
    all_of(RECORDING)


def test_recordings_of_ranks_cover_what_they_claim():
    assert len(PLANS) >= 40
    spreads = [layouts.spread(plan) for plan in PLANS]
    ours = {name for name in layouts.names() if not layouts.find(name).package}
    assert {spread.layout for spread in spreads} == ours - {layouts.SINGLE}
    assert {2, 4, 8, 64} <= {spread.world for spread in spreads}
    assert {0, 1} <= {
        (plan.rank or 0) // (s.world - 1) for plan, s in zip(PLANS, spreads, strict=True)
    }
    for layout in ("ddp", "fsdp2"):
        plans = [p for p, s in zip(PLANS, spreads, strict=True) if s.layout == layout]
        assert {"fp32", "amp-bf16"} <= {plan.precision for plan in plans}
        assert any(plan.grad_accum > 1 for plan in plans), layout
        assert any(plan.checkpointing for plan in plans), layout
        assert any(plan.lora for plan in plans), layout
