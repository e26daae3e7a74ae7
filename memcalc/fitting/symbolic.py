"""The symbolic traces of programs: at hand, on disk, learnt, proven, refuted."""

from __future__ import annotations

import contextlib
from typing import Any, NoReturn

import msgspec
from msgspec.structs import replace

from memcalc.errors import EstimateError, MemcalcError
from memcalc.estimation import from_symbolic
from memcalc.estimation.decoding import grown
from memcalc.estimation.decoding.grown import is_long
from memcalc.estimation.from_symbolic import point_of
from memcalc.estimation.question import Asked, asked
from memcalc.records.plan import Plan
from memcalc.records.trace import Trace
from memcalc.symbolic.evaluate import Evaluator
from memcalc.symbolic.records import Point, SymbolicTrace
from memcalc.trace.folding.tagged import same
from memcalc.trace.passes import NotSteadyError

_MOST = 6
"""A program whose decisions change more often than this with its sizes is traced instead."""
_MOST_OF_DECODE = 16
"""The same of a decode: each place at which a window fills is one, for prompts of any length."""


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
            config = self._on_disk(plan)
            kept = () if config is None else from_symbolic.load(plan, config)
            self._known[plan.program] = list(kept)
        for evaluator in self._known[plan.program]:
            if evaluator.holds(point_of(evaluator.symbolic, plan), question.target):
                return evaluator
        return None

    def refuses(self, plan: Plan) -> bool:
        """Whether it is known that no symbolic trace describes a plan."""
        return plan.program in self._refused

    def may_learn(self, plan: Plan) -> bool:
        """Whether one more is worth learning for a plan that none holds for."""
        if plan.program in self._refused:
            return False
        most = _MOST_OF_DECODE if is_long(plan.generate) else _MOST
        if len(self._known[plan.program]) < most:
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
        question = asked(plan)
        target = question.target
        if is_long(plan.generate):
            self._prove_decode(question, trace)
            return
        for evaluator in self._known.get(plan.program, []):
            point = point_of(evaluator.symbolic, plan)
            if not evaluator.holds(point, target):
                continue
            if not same(evaluator.trace(point, target), trace):
                self._refute(plan)
            if evaluator.symbolic.learnt_at != point:
                fresh = self._unproven.pop(id(evaluator), None)
                config = self._on_disk(plan)
                if fresh is not None and config is not None:
                    from_symbolic.keep(fresh[0], config, fresh[1])

    def _prove_decode(self, question: Asked, trace: Trace) -> None:
        def find(point: Point) -> Evaluator:
            found = self.find(at(question, point))
            if found is None:
                raise _NotKnownError
            return found

        point = Point(batch=question.plan.batch, seq=trace.seq)
        with contextlib.suppress(_NotKnownError, NotSteadyError):
            foretold = grown.trace_of(question, point, find)
            if not same(foretold, trace) or _bare(foretold) != _bare(trace):
                self._refute(question.plan)
            for evaluator in self._known[question.plan.program]:
                self._unproven.pop(id(evaluator), None)

    def _refute(self, plan: Plan) -> NoReturn:
        self._refused.add(plan.program)
        self._known[plan.program] = []
        raise SymbolicTraceRefutedError

    def _on_disk(self, plan: Plan) -> dict[str, Any] | None:
        """The config by which they are kept; those of a decode are not."""
        return None if plan.generate is not None else self._config

    def longest(self, plan: Plan) -> int | None:
        """The longest sequence the model takes; ``None``: no limit is known."""
        known = self._known.get(plan.program)
        if not known or known[0].symbolic.longest is None:
            return None
        # What is generated takes positions as well.
        return known[0].symbolic.longest - (plan.generate or 1) + 1


def at(question: Asked, point: Point) -> Asked:
    """The same question at another point."""
    return replace(question, plan=replace(question.plan, batch=point.batch, seq=point.seq))


def _bare(trace: Trace) -> bytes:
    """The passes that a trace leaves out, whether it was packed meanwhile or not."""
    return msgspec.json.encode(trace.curve)


class _NotKnownError(Exception):
    """No symbolic trace holds at a point."""
