"""Recorded single ranks under DeepSpeed, against their estimates; only where it is installed."""

import pytest

from memcalc.errors import UsageError
from memcalc.estimation.question import check_names
from memcalc.files.artifact import decode
from memcalc.records.plan import Plan
from tests.evidence.judged import DEEPSPEED, all_of, named, runs, sample

(RECORDING,) = named("deepspeed-torch")
(LOOPS,) = named("deepspeed-loops")
PLANS = [decode(Plan, run["plan"]) for run in runs(RECORDING)]
OTHERWISE = (3,)
"""Recorded with 1.7 MB less in its last forward; nobody knows why. Its peaks are met."""
SMALL = [i for i, plan in enumerate(PLANS) if plan.model == "distilbert-base-cased"]


@pytest.mark.skipif(not DEEPSPEED, reason="runs DeepSpeed's own code")
def test_ranks_under_the_engine_are_met(forked):
    sample(forked, RECORDING, SMALL)


@pytest.mark.nightly
@pytest.mark.skipif(not DEEPSPEED, reason="runs DeepSpeed's own code")
@pytest.mark.parametrize("recording", [RECORDING, LOOPS], ids=["engine", "loops"])
def test_all_of_them_are_equal_in_every_phase(recording):
    all_of(recording, but=OTHERWISE if recording == RECORDING else ())


@pytest.mark.skipif(DEEPSPEED, reason="it is installed")
def test_without_deepspeed_a_sentence_says_what_to_install():
    for plan in PLANS:
        with pytest.raises(UsageError, match=r"pip install deepspeed"):
            check_names(plan)
