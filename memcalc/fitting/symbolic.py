"""The symbolic traces of programs: at hand, on disk, learnt, proven, refuted."""

from __future__ import annotations

from typing import Any

from memcalc.errors import EstimateError, MemcalcError
from memcalc.estimation import from_symbolic
from memcalc.estimation.from_symbolic import point_of
from memcalc.estimation.question import Asked, asked
from memcalc.records.plan import Plan
from memcalc.records.trace import Trace
from memcalc.symbolic.evaluate import Evaluator
from memcalc.symbolic.records import SymbolicTrace
from memcalc.trace.folding.tagged import same

_MOST = 6
"""A program whose decisions change more often than this with its sizes is traced instead."""


class SymbolicTraceRefutedError(Exception):
    """A plain trace differs from what a symbolic trace says: a defect of memcalc, caught."""


class SymbolicTraces:
    """What is known of how programs grow.

    One is put on disk only after plain traces at other points than its own confirmed it.
    """

    def __init__(self, config: dict[str, Any] | None) -> None:
        """Start with what is on disk for a model's ``config``; with nothing where it is None."""
        self._config = config
        self._known: dict[Plan, list[Evaluator]] = {}
        self._unproven: dict[int, tuple[Plan, SymbolicTrace]] = {}
        self._refused: set[Plan] = set()
        self.notes: dict[str, None] = {}
        """What a reader should know of programs that no symbolic trace describes."""

    def find(self, question: Asked) -> Evaluator | None:
        """A symbolic trace that holds for the question; ``None``: none is known."""
        plan = question.plan
        if plan.program in self._refused:
            return None
        if plan.program not in self._known:
            kept = () if self._config is None else from_symbolic.load(plan, self._config)
            self._known[plan.program] = list(kept)
        for evaluator in self._known[plan.program]:
            if evaluator.holds(point_of(evaluator.symbolic, plan), question.target):
                return evaluator
        return None

    def may_learn(self, plan: Plan) -> bool:
        """Whether one more is worth learning for a plan that none holds for."""
        if plan.program in self._refused or plan.infers:
            return False
        if len(self._known[plan.program]) < _MOST:
            return True
        self.notes["some sizes were found by tracing them: the model runs otherwise there"] = None
        return False

    def take(self, plan: Plan, learnt: SymbolicTrace | MemcalcError) -> None:
        """Add what was learnt of a plan.

        Raises:
            MemcalcError: the plan itself cannot be estimated.
        """
        if isinstance(learnt, EstimateError):
            self._refused.add(plan.program)
            self.notes[f"found by tracing each size ({learnt})"] = None
        elif isinstance(learnt, MemcalcError):
            raise learnt
        else:
            evaluator = Evaluator(learnt)
            self._known[plan.program].append(evaluator)
            self._unproven[id(evaluator)] = plan, learnt

    def unproven(self, evaluator: Evaluator | None) -> bool:
        """Whether no plain trace at another point than its own has confirmed it yet."""
        return id(evaluator) in self._unproven

    def prove(self, plan: Plan, trace: Trace) -> None:
        """Hold the symbolic traces of a plan against its plain trace; keep on disk what passes.

        Raises:
            SymbolicTraceRefutedError: one says otherwise; it is not used any more.
        """
        target = asked(plan).target
        for evaluator in self._known.get(plan.program, []):
            point = point_of(evaluator.symbolic, plan)
            if not evaluator.holds(point, target):
                continue
            if not same(evaluator.trace(point, target), trace):
                self._refused.add(plan.program)
                self._known[plan.program] = []
                raise SymbolicTraceRefutedError
            if evaluator.symbolic.learnt_at != point:
                fresh = self._unproven.pop(id(evaluator), None)
                if fresh is not None and self._config is not None:
                    from_symbolic.keep(fresh[0], self._config, fresh[1])

    def longest(self, plan: Plan) -> int | None:
        """The longest sequence the model takes; ``None``: no limit is known."""
        known = self._known.get(plan.program)
        return known[0].symbolic.longest if known else None
