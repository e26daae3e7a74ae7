"""Finds the cheapest changes that bring a run under its budget."""

import contextlib
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from memcalc.advice.remedies.records import Change, Figures, Goal, Search, figures
from memcalc.advice.remedies.search import advise
from memcalc.advice.remedies.trials import Trials
from memcalc.budgets.collect import simulate_command
from memcalc.budgets.judge import judge_one
from memcalc.budgets.records import Budget, Evidence, Known, Rule, Status, Verdict
from memcalc.budgets.starter import toml
from memcalc.errors import MemcalcError
from memcalc.estimation.answers import Answers
from memcalc.records.plan import Plan
from memcalc.records.prediction import RUNGS, Prediction
from memcalc.units import format_mib

_EXPANDABLE = "expandable_segments:True"


class Adviser:
    """Finds changes of a plan that keep an exceeded budget."""

    def __init__(self, *, use_cache: bool, timeout: float) -> None:
        """Try nothing yet; ``use_cache``: keep and reuse answers on disk.

        ``timeout``: seconds after which a run is ended.
        """
        self._answers = Answers(use_cache=use_cache, workers=None, timeout=timeout)
        self._use_cache, self._timeout = use_cache, timeout
        self._trials: dict[Plan, Trials | None] = {}
        self._simulated: dict[Plan, Evidence] = {}

    def __call__(self, budget: Budget, evidence: Evidence, before: Known | None) -> str:
        """Return a phrase with the changes that keep the budget; "" if none can be tried."""
        prediction = evidence.prediction
        if evidence.measurement is not None or prediction is None or prediction.method != "trace":
            return ""
        if prediction.plan.command:
            return self._try_expandable(budget, prediction, before)
        trials = self._find_trials(prediction.plan)
        if trials is None:
            return ""

        def verdict(figures: Figures) -> Verdict:
            return judge_one(
                budget, Evidence(prediction=trials.answers.predict_one(figures.plan)), before
            )

        now = verdict(trials.before)
        goal = Goal(
            limit=now.limit or 0,
            rung=budget.metric,
            holds=lambda figures: verdict(figures).status is Status.HOLDS,
            outside=_bytes_outside(budget, trials.before),
        )
        _, found = advise(trials, goal, alone=False)
        assert found is not None
        return _describe(found, lambda figures: verdict(figures).value, now.value)

    def _try_expandable(self, budget: Budget, prediction: Prediction, before: Known | None) -> str:
        """Simulate the command with expandable segments; return a phrase on the outcome."""
        plan = prediction.plan
        if not plan.alloc_conf and _bytes_outside(budget, figures(prediction)) is not None:
            changed = replace(plan, alloc_conf=_EXPANDABLE)
            if changed not in self._simulated:
                folder = Path(budget.where.file).resolve().parent
                self._simulated[changed] = simulate_command(
                    changed, folder, budget.run, self._timeout, use_cache=self._use_cache
                )
            verdict = judge_one(budget, self._simulated[changed], before)
            if verdict.status is Status.HOLDS and verdict.value is not None:
                to = format_mib(verdict.value)
                return f"{_write_change(('alloc_conf', _EXPANDABLE))} in the file brings it to {to}"
            if verdict.value is not None:
                tried = f"{format_mib(verdict.value)} with {_EXPANDABLE}"
                return f"the script itself must need less: {tried}"
        return "the script itself must need less"

    def _find_trials(self, plan: Plan) -> Trials | None:
        """Return the trials of a plan, traced once; None if it cannot be traced."""
        if plan not in self._trials:
            self._trials[plan] = None
            with contextlib.suppress(MemcalcError):
                self._trials[plan] = Trials(self._answers.trace(plan), self._answers)
        return self._trials[plan]


def _bytes_outside(budget: Budget, before: Figures) -> int | None:
    """Return the bytes outside the allocator that a budget's figure includes, or None."""
    rung = budget.metric.removeprefix("peak.")
    if budget.rule is Rule.FITS or rung == "process_used":
        return before.context.low if before.context is not None else 0
    return 0 if rung in RUNGS else None


def _describe(found: Search, size_of: Callable[[Figures], int | None], now: int | None) -> str:
    """Return a phrase: the changes that keep the budget, or the nearest ones."""
    best = found.best
    if best is not None and best.figures is not None:
        changes = "; ".join(
            f"{', '.join(map(_write_change, one.changes))} (cost: {one.cost})"
            for one in best.remedies
        )
        size = size_of(best.figures)
        to = f" to {format_mib(size)}" if size is not None else ""
        return f"in the file this brings it{to}: {changes}"
    sizes = {trial.remedies: size_of(trial.figures) for trial in found.trials if trial.figures}
    known = {remedies: size for remedies, size in sizes.items() if size is not None}
    nearest = min(known, key=known.__getitem__, default=None)
    if nearest is None or (now is not None and known[nearest] >= now):
        return "none of the known changes helps"
    return f"no change is enough; {', '.join(map(str, nearest))}: {format_mib(known[nearest])}"


def _write_change(change: Change) -> str:
    """Return a change as a line of a budget file, such as ``batch = 4``."""
    name, value = change
    return f"{name} = {toml(dict(value) if isinstance(value, tuple) else value)}"
