"""Changed plans, each estimated in full and only once."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from memcalc.catalog.plan import make
from memcalc.errors import MemcalcError, UsageError
from memcalc.estimation.estimate import Traced, Tracer
from memcalc.records.plan import Plan
from memcalc.remedies.records import Figures, Remedy, Trial


class Laboratory:
    """Tries remedies on one plan; asks the same child process for all of them."""

    def __init__(self, plan: Plan, tracer: Tracer) -> None:
        self.plan = plan
        self.tracer = tracer
        self._known: dict[Plan, Figures | str] = {}

    def try_out(self, remedies: Sequence[Remedy]) -> Trial:
        """Estimate the plan with these changes, made in this order."""
        names = tuple(_name(remedy) for remedy in remedies)
        try:
            changed = apply(self.plan, remedies)
        except UsageError as error:
            return Trial(remedies=names, figures=None, error=str(error))
        if changed not in self._known:
            self._known[changed] = self._estimate(changed)
        found = self._known[changed]
        if isinstance(found, str):
            return Trial(remedies=names, figures=None, error=found)
        return Trial(remedies=names, figures=found)

    def _estimate(self, plan: Plan) -> Figures | str:
        answer = self.tracer.trace(plan)
        return str(answer) if isinstance(answer, MemcalcError) else figures(answer)


def figures(traced: Traced) -> Figures:
    """What remedies are compared by."""
    prediction = traced.prediction
    return Figures(
        plan=prediction.plan,
        peak=prediction.peak,
        context=prediction.context,
        fit=prediction.fit,
        flops=traced.trace.flops,
    )


def apply(plan: Plan, remedies: Sequence[Remedy]) -> Plan:
    """The plan with all changes; where two change the same field, the later one stands.

    Raises:
        UsageError: the changes do not go together.
    """
    settings = msgspec.structs.asdict(plan)
    for remedy in remedies:
        settings.update(remedy.changes)
    return make(settings)


def _name(remedy: Remedy) -> str:
    if remedy.key != "accumulate":
        return remedy.key
    batch = dict(remedy.changes)["batch"]
    return f"{remedy.key} (micro-batches of {batch})"
