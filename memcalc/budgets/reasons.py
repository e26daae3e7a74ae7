"""Explains a figure in a few words: what dominates it, or what made it grow."""

from __future__ import annotations

from collections.abc import Callable

from memcalc.budgets.metrics import COMPONENTS, PER_PARAMETER
from memcalc.budgets.records import Budget, Evidence, Known, Rule
from memcalc.records.prediction import Prediction
from memcalc.records.trace import Component
from memcalc.units import format_bytes

Remedy = Callable[[Budget, Evidence, "Known | None"], str]
"""Given a budget, what is known of its run and of its baseline: what would bring it under, in one
clause such as ``checkpointing brings it to 1.2 GiB``; empty where nothing is known."""


def no_remedy(budget: Budget, evidence: Evidence, before: Known | None) -> str:
    """Know nothing that would bring a run under its budget."""
    return ""


def why(budget: Budget, evidence: Evidence, before: Known | None) -> str:
    """What dominates the figure of a budget."""
    prediction = evidence.prediction
    metric = budget.metric
    if budget.rule is Rule.GROWTH and before is not None:
        return growth(evidence, before)
    if metric == Component.OPTIMIZER_STATE and prediction is not None:
        return _state(prediction)
    component = metric.removeprefix(f"{PER_PARAMETER}.")
    if component in COMPONENTS:
        return _share(prediction, component) if prediction is not None else ""
    return _dominant(prediction) if prediction is not None else ""


def growth(evidence: Evidence, before: Known) -> str:
    """Which component changed most since the baseline."""
    prediction = evidence.prediction
    if prediction is None:
        return ""
    steps = {
        name: prediction.components.get(Component(name), 0) - before.figures[name]
        for name in COMPONENTS
        if name in before.figures
    }
    largest = max(steps, key=lambda name: abs(steps[name]), default=None)
    if largest is None or not steps[largest]:
        return "no component changed"
    sign = "+" if steps[largest] > 0 else "-"
    return f"{_words(largest)} {sign}{format_bytes(abs(steps[largest]))}"


def _dominant(prediction: Prediction) -> str:
    total = sum(prediction.components.values())
    phase = prediction.peak.phase.value
    if not total:
        return f"the peak is in {phase}"
    name, size = max(prediction.components.items(), key=lambda item: item[1])
    return f"{_words(name.value)} {size / total:.0%}, in {phase}"


def _share(prediction: Prediction, component: str) -> str:
    total = sum(prediction.components.values())
    size = prediction.components.get(Component(component), 0)
    return f"{size / total:.0%} of the peak, in {prediction.peak.phase.value}" if total else ""


def _state(prediction: Prediction) -> str:
    notes = prediction.optimizer_state.notes
    return notes[0] if notes else f"state of {prediction.optimizer_state.implementation}"


def _words(name: str) -> str:
    return name.replace("_", " ")
