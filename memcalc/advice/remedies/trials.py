"""Changed plans, each estimated in full and only once."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

import msgspec
from msgspec.structs import replace

from memcalc.advice.remedies.records import Change, Option, Remedy, Trial, figures
from memcalc.catalog import gpus
from memcalc.catalog.plan import make
from memcalc.errors import MemcalcError, UsageError
from memcalc.estimation.answers import Answers
from memcalc.estimation.engine import engine
from memcalc.estimation.fits import device_of
from memcalc.estimation.kept import Traced
from memcalc.estimation.predict import predict
from memcalc.estimation.question import asked
from memcalc.estimation.replays import Replays, on_device, read_replay, roomy_card
from memcalc.records.plan import Plan
from memcalc.records.prediction import Prediction


class Trials:
    """Tries remedies on one plan, all in the same child processes."""

    def __init__(
        self,
        base: Traced | Prediction,
        answers: Answers,
        memory: int | None = None,
        begun: Iterable[tuple[Plan, Prediction | MemcalcError]] = (),
        side_by_side: int | None = None,
    ) -> None:
        """Try nothing yet; ``memory`` is in bytes, in place of the GPU's own, for a traced plan.

        ``begun``: answers that are under way. ``side_by_side``: plans that a search may run ahead;
        None: as many as the tracer has processes.
        """
        self._begun = begun
        known = base if isinstance(base, Prediction) else base.prediction
        self.plan = known.plan
        self.inventory = base.trace.inventory if isinstance(base, Traced) else None
        self.side_by_side = side_by_side or answers.workers
        self._base, self._answers = base, answers
        self._memory = memory
        self._known: dict[Plan, Prediction | MemcalcError] = {}
        if isinstance(base, Traced):
            known = self._on_device(base)
        self._known[self.plan] = known
        self.before = figures(known)

    def saving(self, option: Option) -> int:
        """What options are sorted by; what has no figures comes last."""
        rung = "reserved" if self.before.peak.reserved is not None else "requested"
        saved = option.trial.saved(self.before, rung)
        return -saved if saved is not None else 1 << 60

    def options(self, remedies: Sequence[Remedy]) -> Iterator[Option]:
        """Try each remedy by itself; yields in their order, as soon as it is known."""
        answers = self.each([[remedy] for remedy in remedies])
        return (Option(remedy=r, trial=t) for r, t in zip(remedies, answers, strict=True))

    def each(self, stages: Sequence[Sequence[Remedy]]) -> Iterator[Trial]:
        """Estimate the plan with each of these sets of changes."""
        plans = [_changed(self.plan, stage) for stage in stages]
        fresh = [plan for plan in plans if isinstance(plan, Plan) and plan not in self._known]
        asked = list(dict.fromkeys(fresh))
        answers = chain(self._begun, zip(asked, self._ask(asked), strict=True))
        for stage, plan in zip(stages, plans, strict=True):
            names = tuple(remedy.name or remedy.key for remedy in stage)
            if isinstance(plan, str):
                yield Trial(remedies=names, figures=None, error=plan)
                continue
            while plan not in self._known:
                known, answer = next(answers)
                self._known[known] = answer
            found = self._known[plan]
            if isinstance(found, MemcalcError):
                yield Trial(remedies=names, figures=None, error=str(found))
            else:
                yield Trial(remedies=names, figures=figures(found))

    def prediction(self, plan: Plan) -> Prediction:
        """The whole of an estimate whose figures a trial has."""
        found = self._known[plan]
        assert isinstance(found, Prediction)
        return found

    def _ask(self, plans: Sequence[Plan]) -> Iterator[Prediction | MemcalcError]:
        base = self._base
        own = [isinstance(base, Traced) and is_replay(base, plan) for plan in plans]
        run = self._run([plan for plan, replays in zip(plans, own, strict=True) if not replays])
        for plan, replays in zip(plans, own, strict=True):
            if replays:
                assert isinstance(base, Traced)
                yield self._on_device(replayed(base, plan))
            else:
                yield next(run)

    def _run(self, plans: Sequence[Plan]) -> Iterator[Prediction | MemcalcError]:
        if self._memory is None:
            yield from self._answers.predict(plans)
            return
        for found in self._answers.traces(plans):
            yield found if isinstance(found, MemcalcError) else self._on_device(found)

    def _on_device(self, traced: Traced) -> Prediction:
        if self._memory is None:
            return traced.prediction
        gpu = gpus.find(self.plan.gpu) if self.plan.gpu is not None else None
        plan = traced.prediction.plan
        device = device_of(gpu, self._memory, plan)
        return on_device(traced.prediction, traced.trace, device, engine.player(plan))


def is_replay(base: Traced, plan: Plan) -> bool:
    """Return True if a plan differs from one that was run in settings of the allocator alone."""
    known = base.prediction.plan
    return plan.alloc_conf != known.alloc_conf and plan == replace(
        known, alloc_conf=plan.alloc_conf
    )


def replayed(base: Traced, plan: Plan) -> Traced:
    """Answer a plan by replaying the run of one that differs in settings of the allocator alone.

    Raises:
        MemcalcError: it cannot be replayed.
    """
    question, play, trace = asked(plan), engine.player(plan), base.trace
    (found,) = Replays(trace, play).on([roomy_card(question)])
    trace = read_replay(found, trace)
    answer = predict(question, trace, base.prediction.optimizer_state, play)
    return Traced(prediction=answer, trace=trace)


def begin(plan: Plan, answers: Answers, remedies: Sequence[Remedy]) -> tuple[Traced, Trials]:
    """Trace a plan, and try each remedy by itself side by side with it.

    Raises:
        MemcalcError: the plan cannot be traced.
    """
    tried = dict.fromkeys(_changed(plan, [remedy]) for remedy in remedies)
    others = [one for one in tried if isinstance(one, Plan) and one != plan]
    traced, beside = answers.trace_beside(plan, others)
    return traced, Trials(traced, answers, begun=zip(others, beside, strict=True))


def _changed(plan: Plan, remedies: Sequence[Remedy]) -> Plan | str:
    """The changed plan, or why there is none."""
    refused = next((remedy.unfit for remedy in remedies if remedy.unfit is not None), None)
    if refused is not None:
        return refused
    try:
        return apply(plan, remedies)
    except UsageError as error:
        return str(error)


def apply(plan: Plan, remedies: Sequence[Remedy]) -> Plan:
    """The plan with all changes; where two change the same field, the later one stands.

    Raises:
        UsageError: the changes do not go together.
    """
    return changed(plan, [change for remedy in remedies for change in remedy.changes])


def changed(plan: Plan, changes: Iterable[Change]) -> Plan:
    """The plan with these changes; where two are of the same field, the later one stands.

    Raises:
        UsageError: they do not go together.
    """
    return make(msgspec.structs.asdict(plan) | dict(changes))
