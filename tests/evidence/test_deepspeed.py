"""Recorded single ranks under DeepSpeed, against their estimates; only where it is installed."""

import importlib.util
import json

import pytest

from memcalc.errors import UsageError
from memcalc.estimation.understand import check_names
from memcalc.files.artifact import decode
from memcalc.records.plan import Plan
from memcalc.workload import layouts
from tests.evidence.test_standin import STANDIN, accuracy

(RECORDING,) = STANDIN.glob("deepspeed-torch*.json")
(LOOPS,) = STANDIN.glob("deepspeed-loops-*.json")
RUNS = json.loads(RECORDING.read_text())["runs"]
PLANS = [decode(Plan, run["plan"]) for run in RUNS]
INSTALLED = importlib.util.find_spec("deepspeed") is not None
SMALL = [i for i, plan in enumerate(PLANS) if plan.model == "distilbert-base-cased"]


@pytest.mark.skipif(not INSTALLED, reason="runs DeepSpeed's own code")
@pytest.mark.parametrize("index", SMALL)
def test_the_peaks_of_a_rank_under_the_engine_are_equal(index):
    (row,) = accuracy["compare"](RECORDING, first=index, every=1 << 20)
    assert not any(row.off.values()), (accuracy["label"](row.plan), row.off)


@pytest.mark.nightly
@pytest.mark.skipif(not INSTALLED, reason="runs DeepSpeed's own code")
def test_all_of_them_are_met():
    for row in accuracy["compare"](RECORDING):
        assert not row.off["requested"], (accuracy["label"](row.plan), row.off)
        assert abs(row.off["allocated"]) <= 0.01, (accuracy["label"](row.plan), row.off)
        assert abs(row.off["reserved"]) <= 0.03, (accuracy["label"](row.plan), row.off)


@pytest.mark.nightly
@pytest.mark.skipif(not INSTALLED, reason="runs DeepSpeed's own code")
def test_under_accelerate_and_the_trainer_they_are_met():
    rows = accuracy["compare"](LOOPS)
    assert {row.plan.loop for row in rows} == {"accelerate", "trainer"}
    for row in rows:
        assert all(row.exact.values()), (accuracy["label"](row.plan), row.off)


@pytest.mark.skipif(INSTALLED, reason="it is installed")
def test_without_deepspeed_a_sentence_says_what_to_install():
    for plan in PLANS:
        with pytest.raises(UsageError, match=r"pip install 'torch-memcalc\[deepspeed\]'"):
            check_names(plan)


def test_recordings_cover_what_they_claim():
    spreads = [layouts.spread(plan) for plan in PLANS]
    assert {spread.layout for spread in spreads} == {"deepspeed_zero1", "zero2", "zero3"}
    assert {1, 2, 4, 8, 64} <= {spread.world for spread in spreads}
    assert {"fp32", "bf16", "amp-bf16", "amp-fp16"} <= {plan.precision for plan in PLANS}
    for layout in ("zero2", "zero3"):
        plans = [p for p, s in zip(PLANS, spreads, strict=True) if s.layout == layout]
        assert any(plan.grad_accum > 1 for plan in plans), layout
        assert any(dict(plan.parallel_args).get("offload") for plan in plans), layout
    assert any(plan.lora for plan in PLANS)
    assert any(plan.checkpointing for plan in PLANS)
