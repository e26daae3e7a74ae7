"""What would bring a run under its budget: the cheapest single change that does, estimated."""

from __future__ import annotations

from types import TracebackType

from memcalc.budgets import metrics
from memcalc.budgets.records import Budget, Evidence, Rule
from memcalc.errors import UsageError
from memcalc.estimation.estimate import Traced, Tracer
from memcalc.records.plan import Plan
from memcalc.records.prediction import Prediction
from memcalc.remedies.records import Remedy
from memcalc.remedies.table import candidates
from memcalc.remedies.trials import apply
from memcalc.units import format_mib

DEAREST = 6
"""The highest rank that is proposed: beyond it, other parameters train."""


class Adviser:
    """Called with an exceeded budget, tries changes of the plan until one keeps it."""

    def __init__(self, *, use_cache: bool) -> None:
        self._tracer = Tracer(use_cache=use_cache)
        self._known: dict[str, Traced | None] = {}

    def __enter__(self) -> Adviser:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._tracer.__exit__(kind, error, trace)

    def __call__(self, budget: Budget, evidence: Evidence, over: int) -> str:
        """One clause; empty where the run was measured, or closed forms answered for it."""
        prediction = evidence.prediction
        if evidence.measurement is not None or prediction is None or prediction.method != "trace":
            return ""
        now = _size(budget, prediction)
        traced = self._trace(prediction.plan)
        if now is None or traced is None:
            return ""
        limit, best = now - over, (now, "")
        for remedy in candidates(prediction.plan, traced.trace):
            if remedy.rank > DEAREST:
                break
            size = self._with(budget, prediction.plan, remedy)
            if size is not None and size <= limit:
                return f"{remedy.title} brings it to {format_mib(size)} (cost: {remedy.cost})"
            if size is not None and size < best[0]:
                best = (size, remedy.title)
        if not best[1]:
            return "none of the known changes helps"
        return f"no single change is enough; {best[1]} brings it to {format_mib(best[0])}"

    def _with(self, budget: Budget, plan: Plan, remedy: Remedy) -> int | None:
        try:
            changed = apply(plan, [remedy])
        except UsageError:
            return None
        traced = self._trace(changed)
        return _size(budget, traced.prediction) if traced is not None else None

    def _trace(self, plan: Plan) -> Traced | None:
        key = repr(plan)
        if key not in self._known:
            answer = self._tracer.trace(plan)
            self._known[key] = answer if isinstance(answer, Traced) else None
        return self._known[key]


def _size(budget: Budget, prediction: Prediction) -> int | None:
    if budget.rule is Rule.FITS:
        return prediction.fit.needed if prediction.fit is not None else None
    return metrics.figure(Evidence(prediction=prediction), budget.metric).bytes
