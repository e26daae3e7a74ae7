"""One question has one answer, whichever command it is asked of."""

import pytest

from memcalc.accuracy.compare import compare, peak
from memcalc.advice.explain.explain import explain_plan
from memcalc.advice.explain.timeline import timeline
from memcalc.advice.fit.fit import answer
from memcalc.budgets.judge import judge_one
from memcalc.budgets.metrics import figure
from memcalc.budgets.records import Budget, Evidence, Rule, Status, Where
from memcalc.catalog.plan import make
from memcalc.estimation.answers import Answers
from memcalc.estimation.engine import engine
from memcalc.records.measurement import Measurement, PhaseReading, steady_peak
from memcalc.records.prediction import ALLOCATOR_RUNGS, FitVerdict
from memcalc.records.trace import Phase

QUESTIONS = {
    "as it is": {},
    "an allocator with a fraction": {"alloc_conf": "per_process_memory_fraction:0.001"},
    "another fraction": {"alloc_conf": "per_process_memory_fraction:0.5"},
    "expandable segments": {"alloc_conf": "expandable_segments:True"},
    "resumed": {"resume": True},
    "accumulated": {"batch": 2, "grad_accum": 3},
    "an odd batch": {"batch": 7},
    "LoRA": {"lora": "r=4,target=all-linear"},
    "on the CPU": {"target": "cpu", "gpu": None},
    "evaluated": {"eval": 3},
    "outputs dropped": {"keep_outputs": False},
    "8-bit states": {"optim": "adamw8bit"},
}
STATUS = {
    FitVerdict.FITS: Status.HOLDS,
    FitVerdict.TIGHT: Status.UNKNOWN,
    FitVerdict.DOES_NOT_FIT: Status.OVER,
}


@pytest.fixture(scope="module")
def asked(request, small_model, settings, cached):
    """Each question's plan and its estimate; all are traced in the same children."""
    here = [item for item in request.session.items if item.path == request.path]
    names = {item.callspec.params["traced"] for item in here if hasattr(item, "callspec")}
    plans = {
        name: make({"model": small_model, **settings, **more})
        for name, more in QUESTIONS.items()
        if name in names
    }
    answers = Answers(workers=None)
    return {name: answers.trace(plan) for name, plan in plans.items()}


_BY_DAY = [
    pytest.param(name, marks=() if number % 12 == 1 or number == 0 else pytest.mark.nightly)
    for number, name in enumerate(QUESTIONS)
]


@pytest.fixture(params=_BY_DAY)
def traced(request, asked, cached, monkeypatch):
    monkeypatch.setenv("MEMCALC_CACHE", str(cached))
    return asked[request.param]


def budget(rule, metric="", gpu=None):
    return Budget(run="a", rule=rule, metric=metric, gpu=gpu, where=Where(file="f", line=1))


def test_a_budget_is_judged_by_the_bytes_and_the_verdict_of_the_estimate(traced):
    prediction = traced.prediction
    evidence = Evidence(prediction=prediction)
    for rung in (*ALLOCATOR_RUNGS, "process_used"):
        assert figure(evidence, f"peak.{rung}").bytes == getattr(prediction.peak, rung)
    found = judge_one(budget(Rule.FITS, gpu=prediction.plan.gpu), evidence, None)
    if prediction.fit is None:
        assert found.status is Status.UNKNOWN
    else:
        assert found.status is STATUS[prediction.fit.verdict]
        assert (found.status is Status.OVER) == (found.difference > 0)


def test_an_explanation_has_the_bytes_and_the_verdict_of_the_estimate(traced):
    prediction = traced.prediction
    found = explain_plan(prediction.plan, remedies=False)
    assert (found.prediction, found.figures.peak) == (prediction, prediction.peak)
    assert found.figures.fit == prediction.fit
    assert found.peak.requested == prediction.peak.requested
    assert found.peak.components == {k: v for k, v in prediction.components.items() if v}


def test_a_picture_shows_the_bytes_of_the_estimate(traced):
    prediction = traced.prediction
    line = timeline(traced.trace, prediction.plan, engine.player(prediction.plan))
    known = {one.phase: one for one in prediction.phases}
    for stretch in line.phases:
        for rung in ALLOCATOR_RUNGS:
            levels, highest = getattr(line, rung), getattr(known[stretch.phase], rung)
            if highest is not None:
                assert max(levels[stretch.begin : stretch.end]) <= highest
    if prediction.peak.phase in {stretch.phase for stretch in line.phases}:
        assert max(line.requested) == prediction.peak.requested


def test_what_fits_is_decided_as_the_estimate_decides_it(traced):
    prediction = traced.prediction
    if prediction.plan.gpu is None:
        pytest.skip("a CPU run has no GPU to fit")
    found = answer(prediction.plan, ())
    assert found.here.fit == prediction.fit
    assert found.here.fit.fits is (prediction.fit.verdict is FitVerdict.FITS)


def test_a_run_that_is_what_was_estimated_shows_no_error_anywhere(traced):
    prediction = traced.prediction
    readings = [
        PhaseReading(
            step=0 if one.phase is Phase.RESUME else 1, phase=one.phase, requested=one.requested,
            allocated=one.allocated, active=None, reserved=one.reserved,
        )
        for one in prediction.phases
    ]  # fmt: skip
    run = Measurement(
        plan=prediction.plan, device="cpu" if prediction.plan.target == "cpu" else "Tesla T4",
        head="", seq=None, parameters=None, weights=None, gradients=None, state=None,
        phases=tuple(readings), seconds_per_step=None, samples_per_second=None,
    )  # fmt: skip
    evidence = Evidence(prediction=prediction, measurement=run)
    assert all(item.error == 0 for item in compare(prediction, run))
    for rung in ALLOCATOR_RUNGS:
        if getattr(prediction.peak, rung) is None:
            continue
        assert steady_peak(run, rung) == peak(prediction, run, rung).measured
        assert figure(evidence, f"peak.{rung}").bytes == steady_peak(run, rung)
        assert steady_peak(run, rung) == max(getattr(one, rung) for one in prediction.phases)


def test_a_fraction_that_is_too_small_does_not_fit_for_anybody(asked):
    prediction, whole = (
        asked["an allocator with a fraction"].prediction,
        asked["as it is"].prediction,
    )
    assert prediction.fit.verdict is FitVerdict.DOES_NOT_FIT
    assert whole.fit.verdict is FitVerdict.FITS
    # The same run: only what the allocator may take is other.
    assert prediction.peak == whole.peak
    found = judge_one(budget(Rule.FITS, gpu="T4"), Evidence(prediction=prediction), None)
    assert (found.status, found.difference > 0) == (Status.OVER, True)
