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
