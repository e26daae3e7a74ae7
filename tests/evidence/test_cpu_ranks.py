"""Recorded runs of several processes on the CPU, over gloo, against the estimate of each rank."""

import pytest
from msgspec.structs import replace

from memcalc.accuracy.compare import peak
from memcalc.estimation.estimate import answers
from memcalc.files.results import load
from tests.evidence.judged import STANDIN

(RECORDING,) = (STANDIN.parent / "cpu").glob("ranks-*.json")
RUNS = load(RECORDING)
RANKS = [
    (f"{run.plan.model} {run.plan.parallel} rank {one.plan.rank}", one)
    for run in RUNS
    for one in run.ranks
]
WITHIN = 0.001
BY_DAY = "distilbert-base-cased fsdp2 rank 0"


@pytest.mark.parametrize(
    ("name", "run"),
    [pytest.param(*one, marks=[] if one[0] == BY_DAY else pytest.mark.nightly) for one in RANKS],
)
def test_the_peak_of_a_recorded_rank_is_met(name, run):
    (answer,) = answers([replace(run.plan, torch=None)], use_cache=False)
    found = peak(answer, run.measurement, "requested")
    assert abs(found.relative) <= WITHIN, found
