"""A measured run has one steady peak, whoever asks for it."""

import memcalc
from memcalc.accuracy.compare import peak
from memcalc.budgets import metrics
from memcalc.budgets.records import Evidence
from memcalc.records.measurement import Measurement, PhaseReading, steady_peak, steady_peaks
from memcalc.records.plan import Plan
from memcalc.records.trace import Phase

PHASES = (Phase.FORWARD, Phase.BACKWARD, Phase.STEP, Phase.ZERO_GRAD)


def reading(step, phase, level):
    return PhaseReading(step=step, phase=phase, requested=level, allocated=level, active=None,
                        reserved=None)  # fmt: skip


READINGS = (
    *(reading(0, Phase.LOAD, 99), reading(0, Phase.RESUME, 50)),
    *(reading(step, phase, 10 * step + 1) for step in (0, 1, 2) for phase in PHASES),
    *(reading(2, Phase.FORWARD, 30), reading(3, Phase.FORWARD, 500)),
)


def measured(readings):
    return Measurement(
        plan=Plan(model="m"), device="T4", head="", seq=None, parameters=None, weights=None,
        gradients=None, state=None, phases=tuple(readings), seconds_per_step=None,
        samples_per_second=None,
    )  # fmt: skip


def test_the_steady_step_is_the_last_one_that_was_finished():
    assert steady_peaks(()) == {}
    assert {phase: levels["requested"] for phase, levels in steady_peaks(READINGS).items()} == {
        Phase.RESUME: 50, Phase.FORWARD: 30, Phase.BACKWARD: 21, Phase.STEP: 21,
        Phase.ZERO_GRAD: 21,
    }  # fmt: skip


def test_a_resumed_run_has_the_same_peak_for_a_budget_and_beside_its_estimate():
    run = measured(READINGS)
    estimate = memcalc.estimate("distilbert-base-cased", method="analytic", batch=1, seq=8)
    assert steady_peak(run, "requested") == 50
    assert peak(estimate, run, "requested").measured == 50
    figure = metrics.figure(Evidence(measurement=run), "peak.requested")
    assert (figure.bytes, figure.source) == (50, "measured")


def test_a_rung_that_was_not_read_has_no_peak():
    run = measured(READINGS)
    assert steady_peak(run, "reserved") is None
    assert metrics.figure(Evidence(measurement=run), "peak.reserved").bytes is None
