"""Changed plans, each estimated in full and only once."""

import functools
from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import asdict

from memcalc.advice.remedies import bounds
from memcalc.advice.remedies.records import Change, Remedy, Trial, figures
from memcalc.catalog.plan import make
from memcalc.errors import UsageError
from memcalc.estimation.answers import Answers
from memcalc.estimation.kept import Traced
from memcalc.records.plan import Plan
from memcalc.records.prediction import Prediction


class Trials:
    """Changes of one plan, tried in the same child processes."""

    def __init__(
        self,
        base: Traced | Prediction,
        answers: Answers,
        at_once: int | None = None,
    ) -> None:
        """Try nothing yet.

        Args:
            base: the answer of the unchanged plan.
            answers: answers the changed plans.
            at_once: plans that a search may run ahead; None: one for each process.
        """
        self._known = base if isinstance(base, Prediction) else base.prediction
        self._trace = base.trace if isinstance(base, Traced) else None
        self.plan = self._known.plan
        self.inventory = self._trace.inventory if self._trace is not None else None
        self.at_once = at_once or answers.workers
        self.answers = answers
        self.before = figures(self._known)

    def sort_key(self, trial: Trial) -> int:
        """Return the sort key of a trial: the largest saving first, without figures last."""
        rung = "reserved" if self.before.peak.reserved is not None else "requested"
        saving = trial.saving(self.before, rung)
        return -saving if saving is not None else 1 << 60

    def bound_savings(self, remedies: Iterable[Remedy]) -> int:
        """Return the most requested bytes that remedies together can save at the plan's peak."""
        return bounds.bound_savings(self._known, remedies, self._kept_beyond_step)

    @functools.cached_property
    def _kept_beyond_step(self) -> int | None:
        if self._trace is None:
            return None
        return bounds.kept_beyond_step(self._trace, self.plan, self._known.peak.phase)

    def each(self, stages: Sequence[Sequence[Remedy]]) -> Iterator[Trial]:
        """Estimate the plan with each of these sets of changes, and yield in their order."""
        plans = [_apply_or_explain(self.plan, stage) for stage in stages]
        found = self.answers.predict([plan for plan in plans if isinstance(plan, Plan)])
        for stage, plan in zip(stages, plans, strict=True):
            answer = next(found) if isinstance(plan, Plan) else plan
            if isinstance(answer, Prediction):
                yield Trial(remedies=tuple(stage), figures=figures(answer))
            else:
                yield Trial(remedies=tuple(stage), error=str(answer))


def trace_before(plan: Plan, answers: Answers, remedies: Sequence[Remedy]) -> Traced:
    """Trace a plan, and start its estimates with each of these remedies alone.

    Raises:
        MemcalcError: the plan cannot be traced.
    """
    tried = dict.fromkeys(_apply_or_explain(plan, [remedy]) for remedy in remedies)
    others = [one for one in tried if isinstance(one, Plan) and one != plan]
    return answers.trace(plan, before=others)


def _apply_or_explain(plan: Plan, remedies: Sequence[Remedy]) -> Plan | str:
    """Return the plan with these remedies, or a sentence why it cannot have them."""
    refused = next((remedy.unfit for remedy in remedies if remedy.unfit is not None), None)
    try:
        return refused or apply(plan, *remedies)
    except UsageError as error:
        return str(error)


def apply(plan: Plan, *remedies: Remedy) -> Plan:
    """Return the plan with the changes of these remedies; of two of a field the later counts.

    Raises:
        UsageError: the changes do not go together.
    """
    return change(plan, [change for remedy in remedies for change in remedy.changes])


def change(plan: Plan, changes: Iterable[Change]) -> Plan:
    """Return the plan with these (field, value) pairs set.

    Raises:
        UsageError: the changes do not go together.
    """
    return make(asdict(plan) | dict(changes))
