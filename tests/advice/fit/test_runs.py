"""Each size of a program is run once, side by side with others."""

import threading

import pytest
from msgspec.structs import replace

from memcalc.advice.fit.runs import Runs
from memcalc.catalog import gpus
from memcalc.catalog.plan import make
from memcalc.errors import EstimateError
from memcalc.estimation.answers import Answers
from memcalc.estimation.engine import JudgedRun
from memcalc.estimation.fits import make_device
from memcalc.records.levels import Levels
from memcalc.records.prediction import Fit, FitVerdict

PLAN = make({"model": "gpt2", "gpu": "t4", "batch": 1, "seq": 64})
DEVICE = make_device(gpus.find("t4"), plan=PLAN)
LIMIT = 1000
NONE = Levels(requested=0, allocated=0, active=0, reserved=0)


class Asked(Answers):
    """Answers by runs that need as many bytes as they have tokens."""

    def __init__(self, workers=1):
        super().__init__(workers=workers)
        self.asked, self.at_once, self.most = [], 0, 0
        self._counts = threading.Lock()

    def judge(self, plan, devices, lengths=()):
        with self._counts:
            self.asked.append((plan.batch, plan.seq))
            self.at_once += 1
            self.most = max(self.most, self.at_once)
        needed = plan.batch * plan.seq
        verdict = FitVerdict.FITS if needed <= LIMIT else FitVerdict.DOES_NOT_FIT
        fit = Fit(gpu="T4", capacity=LIMIT, needed=needed, metric="process_used", verdict=verdict)
        with self._counts:
            self.at_once -= 1
        return JudgedRun(peaks=NONE, fits=(fit,) * len(devices), seq=plan.seq)


def test_a_question_is_asked_once_however_often_it_is_put():
    answers = Asked()
    runs = Runs(answers, None)
    assert runs.probe(PLAN, DEVICE) == runs.probe(PLAN, DEVICE)
    assert answers.asked == [(1, 64)]


def test_what_is_larger_than_one_that_does_not_fit_is_not_run():
    answers = Asked(workers=2)
    plans = [replace(PLAN, batch=b, seq=s) for s in (64, 128, 256) for b in (1, 4, 8, 16, 64)]
    found = Runs(answers, None).table(plans, DEVICE)
    assert [probe.fit.fits for probe in found] == [p.batch * p.seq <= LIMIT for p in plans]
    assert (64, 256) not in answers.asked
    assert found[-1].fit.metric == "allocated"


def test_each_answer_comes_as_soon_as_it_is_known():
    waits, jobs = threading.Event(), Asked(workers=2)
    late = jobs.iterate_results([lambda: waits.wait(30) and "last", lambda: "first"])
    assert next(late) == "first"
    waits.set()
    assert next(late) == "last"


def test_a_run_that_fails_is_an_error():
    class Broken(Asked):
        def judge(self, plan, devices, lengths=()):
            raise EstimateError("it broke")

    with pytest.raises(EstimateError, match="it broke"):
        Runs(Broken(), None).probe(PLAN, DEVICE)
