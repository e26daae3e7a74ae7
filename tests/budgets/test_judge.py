"""What is over, what holds, and what could not be told; figures held against hand arithmetic."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import memcalc
from memcalc.budgets.check import exit_code
from memcalc.budgets.judge import judge, worst_first
from memcalc.budgets.records import (
    Amount,
    Budget,
    BudgetedRun,
    Evidence,
    Known,
    Report,
    Rule,
    Status,
    Where,
)
from memcalc.measure import process as measured_state
from memcalc.records.measurement import Measurement, OutOfMemory
from memcalc.records.model import Place
from memcalc.records.prediction import Fit, FitVerdict, Growth, Span
from memcalc.records.trace import Phase, PhaseReading

STATE = measured_state.StateReading(
    device=33, host=1, managed=0, tutorial_elements=0, tutorial_bytes=0
)
WHERE = Where(file="memcalc.toml", line=1)


@pytest.fixture(scope="module")
def prediction():
    return memcalc.estimate(
        "distilbert-base-cased", method="analytic", optim="adam8bit", batch=2, seq=32
    )


def budget(metric, rule=Rule.MAX, **more):
    return Budget(run="a", rule=rule, metric=metric, where=WHERE, **more)


def verdict(one, evidence, before=None):
    run = BudgetedRun(name="a", plan=None, budgets=(one,), where=WHERE)
    (found,) = judge(run, evidence, before)
    return found


def size(count):
    return Amount(text=f"{count} B", bytes=count)


def test_the_limit_itself_holds_and_one_byte_less_does_not(prediction):
    evidence = Evidence(prediction=prediction)
    state = prediction.optimizer_state.total(Place.DEVICE)
    assert state == 134_004_336
    for limit, status in ((state, Status.HOLDS), (state - 1, Status.OVER)):
        found = verdict(budget("optimizer_state", amount=size(limit)), evidence)
        assert (found.status, found.value, found.limit) == (status, state, limit)


@given(limit=st.integers(0, 1 << 40), margin=st.integers(0, 300))
def test_a_margin_takes_its_share_off_the_limit(prediction, limit, margin):
    share = Amount(text=f"{margin}%", percent=Fraction(margin))
    found = verdict(
        budget("weights", amount=size(limit), margin=share), Evidence(prediction=prediction)
    )
    assert found.limit == max(0, limit - limit * margin // 100)
    assert (found.status is Status.OVER) == (found.value > found.limit)


def test_without_a_count_of_parameters_nothing_is_told_per_parameter(prediction):
    evidence = Evidence(prediction=replace(prediction, parameters=0))
    amount = Amount(text="", per_parameter=Fraction(1 << 40))
    assert verdict(budget("bytes_per_parameter", amount=amount), evidence).status is Status.UNKNOWN


def test_bytes_per_parameter_are_those_of_the_requested_peak(prediction):
    exact = Fraction(prediction.peak.requested, prediction.parameters)
    for number, status in ((exact, Status.HOLDS), (exact - Fraction(1, 10**6), Status.OVER)):
        amount = Amount(text="", per_parameter=number)
        found = verdict(
            budget("bytes_per_parameter", amount=amount), Evidence(prediction=prediction)
        )
        assert found.status is status
    weights = Amount(text="", per_parameter=Fraction(4))
    found = verdict(
        budget("bytes_per_parameter.weights", amount=weights), Evidence(prediction=prediction)
    )
    assert (found.status, found.difference) == (Status.HOLDS, 0)


def test_what_grows_every_step_has_no_peak_that_a_budget_could_hold(prediction):
    grows = Growth(bytes=100 << 20, line="t.py:4")
    fit = Fit(
        gpu="T4", capacity=16 << 30, needed=1, metric="process_used", verdict=FitVerdict.LEAKS
    )
    evidence = Evidence(prediction=replace(prediction, growth=grows, fit=fit))
    ample = Amount(text="", bytes=1 << 60, per_parameter=None)
    for one in (
        budget("peak.requested", amount=ample),
        budget("held", amount=ample),
        budget("bytes_per_parameter", amount=Amount(text="", per_parameter=Fraction(1 << 60))),
        budget("peak.requested", Rule.GROWTH, amount=Amount(text="", percent=Fraction(2))),
        budget("peak", Rule.FITS, gpu="T4"),
    ):
        found = verdict(one, evidence)
        assert found.status is Status.UNKNOWN
        assert "grows by 100.0 MiB every step; made at t.py:4" in found.reason
    assert verdict(budget("weights", amount=ample), evidence).status is Status.HOLDS
    little = replace(evidence, prediction=replace(prediction, growth=replace(grows, bytes=512)))
    assert verdict(budget("peak.requested", amount=ample), little).status is Status.HOLDS


def known(prediction, figures):
    return Known(plan={}, source=prediction.method, figures=figures, parameters=1)


@given(before=st.integers(1, 1 << 40), percent=st.fractions(0, 50), now=st.integers(0, 1 << 41))
def test_growth_is_allowed_up_to_its_share_of_the_baseline(prediction, before, percent, now):
    peak = replace(prediction.peak, requested=now)
    evidence = Evidence(prediction=replace(prediction, peak=peak))
    growth = budget("peak.requested", Rule.GROWTH, amount=Amount(text="", percent=percent))
    found = verdict(growth, evidence, known(prediction, {"peak.requested": before}))
    assert (found.status is Status.OVER) == (now > before + before * percent / 100)


def test_growth_without_a_baseline_cannot_be_told(prediction):
    growth = budget("weights", Rule.GROWTH, amount=size(0))
    evidence = Evidence(prediction=prediction)
    for before in (None, known(prediction, {"gradients": 3})):
        found = verdict(growth, evidence, before)
        assert found.status is Status.UNKNOWN
        assert "--update-baseline" in found.reason


def test_a_baseline_of_another_kind_is_no_baseline(prediction):
    before = Known(plan={}, source="measured on T4", figures={"weights": 1}, parameters=1)
    growth = budget("weights", Rule.GROWTH, amount=size(0))
    found = verdict(growth, Evidence(prediction=prediction), before)
    assert found.status is Status.UNKNOWN
    assert "measured on T4" in found.reason


def test_what_an_estimate_does_not_know_cannot_be_told(prediction):
    found = verdict(budget("peak.reserved", amount=size(1 << 60)), Evidence(prediction=prediction))
    assert found.status is Status.UNKNOWN
    assert found.reason
    assert verdict(budget("fits", Rule.FITS, gpu="T4"), Evidence(prediction=prediction)).status is (
        Status.UNKNOWN
    )


def test_a_run_that_failed_is_unknown_whatever_the_limit():
    found = verdict(budget("weights", amount=size(1 << 60)), Evidence(error="it broke"))
    assert (found.status, found.reason) == (Status.UNKNOWN, "it broke")


CAPACITY = 1000


@pytest.mark.parametrize(
    ("spare", "status"),
    [(100, Status.HOLDS), (200, Status.UNKNOWN), (299, Status.UNKNOWN), (300, Status.OVER)],
)
def test_fits_is_judged_only_where_the_context_does_not_decide(prediction, spare, status):
    context = Span(low=51, likely=100, high=200, source="")
    fit = Fit(
        gpu="T4", capacity=CAPACITY, needed=750, needed_high=850, metric="process_used",
        verdict=FitVerdict.FITS,
    )  # fmt: skip
    evidence = Evidence(prediction=replace(prediction, context=context, fit=fit))
    asked = budget("fits", Rule.FITS, gpu="T4", margin=size(spare))
    assert verdict(asked, evidence).status is status


def test_what_the_allocator_may_not_take_does_not_fit_however_much_the_gpu_has(prediction):
    context = Span(low=51, likely=100, high=200, source="")
    fit = Fit(
        gpu="T4", capacity=CAPACITY, needed=300, needed_high=400, metric="process_used",
        verdict=FitVerdict.DOES_NOT_FIT, allowed=150,
    )  # fmt: skip
    evidence = Evidence(prediction=replace(prediction, context=context, fit=fit))
    found = verdict(budget("fits", Rule.FITS, gpu="T4"), evidence)
    assert (found.status, found.value, found.limit) == (Status.OVER, 300, 150)
    assert "per_process_memory_fraction" in found.reason


def measurement(prediction, device, *, failure=None, process=None):
    reading = PhaseReading(
        step=3, phase=Phase.STEP, requested=70, allocated=80, active=80, reserved=90,
    )  # fmt: skip
    end = replace(reading, phase=Phase.ZERO_GRAD, requested=50, allocated=60, active=60)
    return Measurement(
        plan=prediction.plan, device=device, head="", seq=32, parameters=5, weights=20,
        gradients=20, phases=(reading, end), seconds_per_step=None, samples_per_second=None,
        state=STATE,
        out_of_memory=failure, process_used=process,
    )  # fmt: skip


def test_a_measurement_goes_before_the_estimate_where_it_tells(prediction):
    evidence = Evidence(prediction=prediction, measurement=measurement(prediction, "Tesla T4"))
    expected = {"peak.allocated": 80, "peak.reserved": 90, "optimizer_state": 33, "weights": 20}
    for metric, value in expected.items():
        found = verdict(budget(metric, amount=size(1)), evidence)
        assert (found.value, found.source, found.status) == (value, "measured", Status.OVER)
    found = verdict(budget("activations", amount=size(1 << 60)), evidence)
    assert (found.source, found.status) == ("estimated", Status.HOLDS)


def test_a_rung_that_was_not_measured_is_not_taken_from_the_estimate(prediction):
    traced = replace(
        prediction,
        peak=replace(prediction.peak, reserved=1 << 62, allocated=1 << 61),
    )
    evidence = Evidence(prediction=traced, measurement=measurement(prediction, "cpu"))
    for metric in ("peak.reserved", "peak.process_used"):
        assert verdict(budget(metric, amount=size(1 << 63)), evidence).status is Status.UNKNOWN
    allocated = verdict(budget("peak.allocated", amount=size(70)), evidence)
    assert (allocated.status, allocated.value) == (Status.HOLDS, 70)


def test_a_run_out_of_memory_does_not_fit_and_tells_no_peak(prediction):
    failure = OutOfMemory(step=0, phase=Phase.FORWARD, asked=None, free=0, message="no room")
    evidence = Evidence(measurement=measurement(prediction, "Tesla T4", failure=failure))
    assert verdict(budget("fits", Rule.FITS, gpu="T4"), evidence).status is Status.OVER
    found = verdict(budget("peak.allocated", amount=size(1 << 60)), evidence)
    assert found.status is Status.UNKNOWN
    assert "no room" in found.reason


def test_what_ran_on_the_gpu_is_judged_by_what_its_process_took(prediction):
    evidence = Evidence(measurement=measurement(prediction, "Tesla T4", process=1 << 30))
    found = verdict(budget("fits", Rule.FITS, gpu="T4"), evidence)
    assert (found.status, found.value, found.source) == (Status.HOLDS, 1 << 30, "measured")


STATUSES = st.lists(st.sampled_from(list(Status)), min_size=1, max_size=6)


@given(statuses=STATUSES, exit_zero=st.booleans())
def test_green_means_that_nothing_failed(prediction, statuses, exit_zero):
    shown = verdict(budget("weights", amount=size(1)), Evidence(prediction=prediction))
    report = Report(verdicts=tuple(replace(shown, status=s) for s in statuses))
    code = exit_code(report, exit_zero=exit_zero)
    assert (code == 1) == (Status.OVER in statuses and not exit_zero)
    if code == 0:
        assert Status.UNKNOWN not in statuses
        assert Status.OVER not in statuses or exit_zero


def test_the_worst_comes_first(prediction):
    evidence = Evidence(prediction=prediction)
    over = [verdict(budget("weights", amount=size(limit)), evidence) for limit in (10, 1, 5)]
    held = [verdict(budget("weights", amount=size(1 << n)), evidence) for n in (50, 40)]
    unknown = verdict(budget("weights", amount=size(1)), Evidence(error="?"))
    ordered = worst_first([*held, unknown, *over])
    assert [v.limit for v in ordered] == [1, 5, 10, None, 1 << 40, 1 << 50]


def test_a_remedy_is_asked_for_what_is_over_and_nothing_else(prediction):
    asked = []

    def remedy(one, evidence, before):
        asked.append(one.metric)
        return "checkpointing saves it"

    run = BudgetedRun(
        name="a", plan=None, where=WHERE,
        budgets=(budget("weights", amount=size(1)), budget("gradients", amount=size(1 << 60))),
    )  # fmt: skip
    first, second = judge(run, Evidence(prediction=prediction), None, remedy)
    assert (first.remedy, second.remedy) == ("checkpointing saves it", "")
    assert asked == ["weights"]
