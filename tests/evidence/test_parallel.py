"""Recorded single ranks of runs over several GPUs, against their estimates.

Some of the smallest models by default, all of them at night.
"""

import json
import statistics

import pytest

from memcalc.files.artifact import decode
from memcalc.records.plan import Plan
from memcalc.workload import layouts
from tests.evidence.test_standin import STANDIN, accuracy

(RECORDING,) = STANDIN.glob("parallel-*.json")
RUNS = json.loads(RECORDING.read_text())["runs"]
PLANS = [decode(Plan, run["plan"]) for run in RUNS]
MEDIAN = {"requested": 0, "allocated": 0.001, "reserved": 0.005}
WORST = {"requested": 0.001, "allocated": 0.01, "reserved": 0.03}


def smallest():
    """Of each layout a run of the smallest models."""
    found, seen = [], {}
    for index, plan in enumerate(PLANS):
        name = layouts.spread(plan).layout
        if plan.model in ("distilbert-base-cased", "t5-small") and seen.setdefault(name, 0) < 1:
            seen[name] += 1
            found.append(index)
    return found


def met(rows):
    for rung in accuracy["RUNGS"]:
        off = {accuracy["label"](row.plan): abs(row.off[rung]) for row in rows}
        assert statistics.median(off.values()) <= MEDIAN[rung], off
        assert max(off.values()) <= WORST[rung], off


def offloaded():
    """One whose parameters are given data of another device, step by step."""
    return [
        index
        for index, plan in enumerate(PLANS)
        if plan.parallel == "fsdp1" and ("offload", "cpu") in plan.parallel_args
    ]


@pytest.mark.parametrize("index", [*smallest()[:1], *offloaded()])
def test_a_rank_is_equal_in_every_phase_on_every_rung(index):
    (row,) = accuracy["compare"](RECORDING, first=index, every=1 << 20)
    assert all(row.exact.values()), (accuracy["label"](row.plan), row.off)


@pytest.mark.nightly
def test_all_ranks_are_met_within_the_bounds_that_are_promised():
    rows = accuracy["compare"](RECORDING)
    met(rows)
    assert sum(row.exact["requested"] for row in rows) >= 0.9 * len(rows)


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
