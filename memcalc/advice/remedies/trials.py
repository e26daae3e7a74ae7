"""Changed plans, each estimated in full and only once."""

import functools
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from msgspec.structs import asdict, replace

from memcalc.advice.remedies import bounds
from memcalc.advice.remedies.records import Change, Remedy, Trial, figures
from memcalc.catalog.plan import make
from memcalc.errors import MemcalcError, UsageError
from memcalc.estimation.answers import Answers
from memcalc.estimation.engine import engine
from memcalc.estimation.kept import Traced
from memcalc.estimation.predict import predict_by_replay
from memcalc.estimation.question import look_up
from memcalc.estimation.replays import Replays
from memcalc.records.plan import Plan
from memcalc.records.prediction import Prediction


class Trials:
    """Changes of one plan, tried in the same child processes."""

    def __init__(
        self,
        base: Traced | Prediction,
        answers: Answers,
        begun: Iterable[tuple[Plan, Prediction | MemcalcError]] = (),
        at_once: int | None = None,
    ) -> None:
        """Try nothing yet.

        Args:
            base: the answer of the unchanged plan.
            answers: answers the changed plans.
            begun: answers that are under way.
            at_once: plans that a search may run ahead; None: one for each process.
        """
        known = base if isinstance(base, Prediction) else base.prediction
        self.plan = known.plan
        self.inventory = base.trace.inventory if isinstance(base, Traced) else None
        self.at_once = at_once or answers.workers
        self._base = base if isinstance(base, Traced) else None
        self._answers, self._begun = answers, begun
        self._as_it_is = known
        self._known: dict[Plan, Prediction | MemcalcError] = {self.plan: known}
        self.before = figures(known)

    def sort_key(self, trial: Trial) -> int:
        """Return the sort key of a trial: the largest saving first, without figures last."""
        rung = "reserved" if self.before.peak.reserved is not None else "requested"
        saving = trial.saving(self.before, rung)
        return -saving if saving is not None else 1 << 60

    def bound_savings(self, remedies: Iterable[Remedy]) -> int:
        """Return an upper bound of the requested bytes that remedies save at the plan's peak."""
        return bounds.bound_savings(self._as_it_is, remedies, self._kept_beyond_step)

    @functools.cached_property
    def _kept_beyond_step(self) -> int | None:
        if self._base is None:
            return None
        phase = self._as_it_is.peak.phase
        return bounds.kept_beyond_step(self._base.trace, self.plan, phase)

    def each(self, stages: Sequence[Sequence[Remedy]]) -> Iterator[Trial]:
        """Estimate the plan with each of these sets of remedies; yield their trials in order."""
        plans = [_apply_or_explain(self.plan, stage) for stage in stages]
        fresh = [plan for plan in plans if isinstance(plan, Plan) and plan not in self._known]
        asked = list(dict.fromkeys(fresh))
        answers = chain(self._begun, zip(asked, self._ask(asked), strict=True))
        for stage, plan in zip(stages, plans, strict=True):
            trial = Trial(remedies=tuple(stage))
            if isinstance(plan, str):
                yield replace(trial, error=plan)
                continue
            while plan not in self._known:
                known, answer = next(answers)
                self._known[known] = answer
            found = self._known[plan]
            if isinstance(found, MemcalcError):
                yield replace(trial, error=str(found))
            else:
                yield replace(trial, figures=figures(found))

    def prediction(self, plan: Plan) -> Prediction:
        """Return the prediction of a plan that was estimated."""
        found = self._known[plan]
        assert isinstance(found, Prediction)
        return found

    def _ask(self, plans: Sequence[Plan]) -> Iterator[Prediction | MemcalcError]:
        """Predict each plan, by a replay where only allocator settings differ."""
        base = self._base
        run = self._answers.predict(
            [plan for plan in plans if base is None or not is_replay(base, plan)]
        )
        for plan in plans:
            if base is not None and is_replay(base, plan):
                yield replay(base, plan, self._answers.memory)
            else:
                yield next(run)


def is_replay(base: Traced, plan: Plan) -> bool:
    """Return True if a plan differs from a traced one only in allocator settings."""
    known = base.prediction.plan
    return plan != known and plan == replace(known, alloc_conf=plan.alloc_conf)


def replay(base: Traced, plan: Plan, memory: int | None = None) -> Prediction:
    """Predict a plan by replaying a trace under the plan's allocator settings.

    ``memory``: bytes of the GPU, in place of its own.

    Raises:
        MemcalcError: it cannot be replayed.
    """
    run = Replays(base.trace, engine.player(plan))
    return predict_by_replay(look_up(plan, memory), run, base.prediction)


def begin(plan: Plan, answers: Answers, remedies: Sequence[Remedy]) -> tuple[Traced, Trials]:
    """Trace a plan while estimating it with each of these remedies alone.

    Raises:
        MemcalcError: the plan cannot be traced.
    """
    tried = dict.fromkeys(_apply_or_explain(plan, [remedy]) for remedy in remedies)
    others = [one for one in tried if isinstance(one, Plan) and one != plan]
    traced, beside = answers.trace_with(plan, others)
    return traced, Trials(traced, answers, begun=zip(others, beside, strict=True))


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
