"""Judges every budget by the figures of its run."""

from collections.abc import Callable, Sequence
from fractions import Fraction

from msgspec.structs import replace

from memcalc.budgets import metrics
from memcalc.budgets.baseline import source
from memcalc.budgets.metrics import COMPONENTS, PER_PARAMETER
from memcalc.budgets.records import (
    Budget,
    BudgetedRun,
    Evidence,
    Known,
    Rule,
    Status,
    Verdict,
)
from memcalc.catalog import gpus
from memcalc.errors import UsageError
from memcalc.estimation import fits
from memcalc.records.measurement import Measurement
from memcalc.records.prediction import FitVerdict
from memcalc.records.trace import Component
from memcalc.units import signed_bytes

_ORDER = list(Status)
_FITTING = {
    FitVerdict.FITS: Status.HOLDS,
    FitVerdict.TIGHT: Status.UNKNOWN,
    FitVerdict.LEAKS: Status.UNKNOWN,
    FitVerdict.DOES_NOT_FIT: Status.OVER,
}


Remedy = Callable[[Budget, Evidence, Known | None], str]
"""Returns the changes that would bring a run under its budget, in a clause such as ``checkpointing
brings it to 1.2 GiB``; empty: unknown."""


def no_remedy(budget: Budget, evidence: Evidence, before: Known | None) -> str:
    """Return "": the default where no remedy is searched."""
    return ""


def why(budget: Budget, evidence: Evidence, before: Known | None) -> str:
    """Return a phrase: the largest component of a budget's figure, or the one that grew most."""
    prediction = evidence.prediction
    if prediction is None:
        return ""
    held, phase = prediction.components, prediction.peak.phase.value
    if budget.rule is Rule.GROWTH and before is not None:
        figures = {name: size for name, size in before.figures.items() if name in COMPONENTS}
        steps = {name: held.get(Component(name), 0) - size for name, size in figures.items()}
        largest = max(steps, key=lambda name: abs(steps[name]), default=None)
        if largest is None or not steps[largest]:
            return "no component changed"
        return f"{largest.replace('_', ' ')} {signed_bytes(steps[largest])}"
    if budget.metric == Component.OPTIMIZER_STATE:
        notes = prediction.optimizer_state.notes
        return notes[0] if notes else f"state of {prediction.optimizer_state.implementation}"
    total = sum(held.values())
    component = budget.metric.removeprefix(f"{PER_PARAMETER}.")
    if component in COMPONENTS:
        size = held.get(Component(component), 0)
        return f"{size / total:.0%} of the peak, in {phase}" if total else ""
    if not total:
        return f"the peak is in {phase}"
    name, size = max(held.items(), key=lambda item: item[1])
    return f"{name.value.replace('_', ' ')} {size / total:.0%}, in {phase}"


def judge(
    run: BudgetedRun, evidence: Evidence, before: Known | None, remedy: Remedy = no_remedy
) -> list[Verdict]:
    """Judge all budgets of one run; search a remedy for those that are exceeded."""
    found = []
    for budget in run.budgets:
        verdict = judge_one(budget, evidence, before)
        if verdict.status is Status.OVER and verdict.difference is not None:
            verdict = replace(verdict, remedy=remedy(budget, evidence, before))
        found.append(verdict)
    return found


def worst_first(verdicts: Sequence[Verdict]) -> tuple[Verdict, ...]:
    """Sort verdicts: exceeded by excess, then unknown, then held by closeness to the limit."""

    def rank(verdict: Verdict) -> tuple[int, Fraction]:
        if verdict.value is None or verdict.limit is None:
            return _ORDER.index(verdict.status), Fraction(0)
        return _ORDER.index(verdict.status), -Fraction(verdict.value, max(verdict.limit, 1))

    return tuple(sorted(verdicts, key=rank))


def judge_one(budget: Budget, evidence: Evidence, before: Known | None) -> Verdict:
    """Judge one budget of a run, without remedies."""
    if evidence.error is not None:
        return _make_unknown(budget, evidence.error)
    if budget.rule is Rule.FITS:
        return _judge_fit(budget, evidence)
    figure = metrics.figure(evidence, budget.metric)
    if figure.bytes is None:
        return _make_unknown(budget, figure.reason, figure.source)
    limit = _find_limit(budget, evidence, before)
    if isinstance(limit, str):
        return _make_unknown(budget, limit, figure.source)
    known = before.figures if before is not None else {}
    name = budget.metric.removeprefix(f"{PER_PARAMETER}.")
    assert budget.amount is not None
    per_parameter = budget.amount.per_parameter is not None
    return Verdict(
        budget=budget,
        status=Status.OVER if figure.bytes > limit else Status.HOLDS,
        value=figure.bytes,
        limit=limit,
        before=known.get("peak.requested" if name == PER_PARAMETER else name),
        parameters=metrics.parameters(evidence) if per_parameter else None,
        source=figure.source,
        reason=why(budget, evidence, before),
    )


def _find_limit(budget: Budget, evidence: Evidence, before: Known | None) -> int | str:
    """Return the bytes a figure may reach, or why they are unknown."""
    amount = budget.amount
    assert amount is not None
    if budget.rule is Rule.GROWTH:
        if before is None or budget.metric not in before.figures:
            return "not in the baseline: memcalc check --update-baseline writes it"
        now = source(evidence)
        if before.source != now:
            return f"the baseline is by {before.source}, this by {now}: --baseline names another"
        known = before.figures[budget.metric]
        return known + amount.resolve(known)
    limit = amount.bytes or 0
    if amount.per_parameter is not None:
        count = metrics.parameters(evidence)
        if not count:
            return "the number of parameters is not known"
        limit = int(amount.per_parameter * count)
    return max(0, limit - _resolve_margin(budget, limit))


def _make_unknown(budget: Budget, reason: str, source: str = "") -> Verdict:
    return Verdict(budget=budget, status=Status.UNKNOWN, source=source, reason=reason)


def _resolve_margin(budget: Budget, limit: int) -> int:
    return budget.margin.resolve(limit) if budget.margin is not None else 0


def _judge_fit(budget: Budget, evidence: Evidence) -> Verdict:
    """Judge whether a run fits the budget's GPU, by a measurement there or the estimate."""
    if evidence.measurement is not None:
        measured = _judge_measurement(budget, evidence.measurement)
        if measured is not None:
            return measured
    prediction = evidence.prediction
    if prediction is None or prediction.fit is None:
        return _make_unknown(budget, "no estimate for this GPU")
    fit, spare = prediction.fit, _resolve_margin(budget, prediction.fit.capacity)
    found = fits.verdict_with_spare(fit, prediction.context, spare)
    reason = why(budget, evidence, None)
    if found is FitVerdict.TIGHT:
        reason = f"{found.value}: {fits.explain_tight(fit)}"
    elif found is FitVerdict.LEAKS and prediction.growth is not None:
        reason = f"{found.value}: {fits.describe_growth(prediction.growth)}"
    elif found is FitVerdict.DOES_NOT_FIT and fit.allowed is not None:
        reason = f"per_process_memory_fraction allows no more; {reason}"
    return Verdict(
        budget=budget,
        status=_FITTING[found],
        value=fit.needed,
        limit=min(fit.limit, max(0, fit.capacity - spare)),
        source="estimated",
        reason=reason,
    )


def _judge_measurement(budget: Budget, measurement: Measurement) -> Verdict | None:
    """Judge a ``fits`` budget by a measurement; None if on another GPU or without NVML."""
    try:
        gpu = gpus.find(measurement.device, measurement.device_total)
    except UsageError:
        return None
    if gpu.name != budget.gpu:
        return None
    failure, used = measurement.out_of_memory, measurement.process_used
    if failure is not None:
        reason = f"out of memory in {failure.phase.value} of step {failure.step}"
        return Verdict(budget=budget, status=Status.OVER, source="measured", reason=reason)
    if used is None:
        return None
    capacity = max(0, gpu.memory - _resolve_margin(budget, gpu.memory))
    return Verdict(
        budget=budget,
        status=Status.OVER if used > capacity else Status.HOLDS,
        value=used,
        limit=capacity,
        source="measured",
        reason=f"as NVML read the process on {measurement.device}",
    )
