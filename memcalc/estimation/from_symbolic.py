"""Symbolic traces kept on disk, and the predictions that can be made from them without PyTorch."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from memcalc.estimation.predict import predict
from memcalc.estimation.question import Asked, asked, canonical
from memcalc.estimation.state import state_for
from memcalc.files import cache
from memcalc.records.plan import Plan
from memcalc.records.prediction import Prediction
from memcalc.symbolic.evaluate import Evaluator
from memcalc.symbolic.expression import FormulaError
from memcalc.symbolic.records import Point, SymbolicTrace

MOST = 8
"""Symbolic traces kept of one program; each holds where its conditions do."""


def keys(plan: Plan, config: dict[str, Any]) -> Iterator[str]:
    """Names of a program's symbolic traces; they answer for any batch, sequence and GPU."""
    name = cache.key(canonical(plan.program), config, "symbolic trace")
    return (f"{name}-{number}" for number in range(MOST))


def load(plan: Plan, config: dict[str, Any]) -> Iterator[Evaluator]:
    """The symbolic traces kept of a plan's program; one that is damaged is left out."""
    for name in keys(plan, config):
        kept = cache.load(name, SymbolicTrace)
        if kept is not None:
            with contextlib.suppress(ValueError, FormulaError):
                yield Evaluator(kept, functools.partial(cache.load_trace, name))


def keep(plan: Plan, config: dict[str, Any], symbolic: SymbolicTrace) -> None:
    """Keep one beside those that are there already; the newest is left out when full."""
    for name in keys(plan, config):
        if cache.load(name, SymbolicTrace) is None:
            cache.store_trace(name, symbolic.trace)
            cache.store(name, symbolic.without_events)
            return


def point_of(symbolic: SymbolicTrace, plan: Plan) -> Point:
    """The point that a plan asks for."""
    if symbolic.default_seq is None:
        return Point(batch=plan.batch, seq=None)
    return Point(batch=plan.batch, seq=plan.seq or symbolic.default_seq)


def predict_from(evaluator: Evaluator, question: Asked) -> Prediction:
    """The prediction that a trace of the plan would give; the symbolic trace must hold there.

    Raises:
        FormulaError: the symbolic trace is damaged.
    """
    plan = question.plan
    trace = evaluator.trace(point_of(evaluator.symbolic, plan), question.target, question.notes)
    learnt = evaluator.symbolic.learnt_at
    where = f"batch {learnt.batch}" + (f" x {learnt.seq} tokens" if learnt.seq is not None else "")
    note = f"sizes come from a run on symbols at {where}, which holds for this batch as well"
    state = state_for(question, trace)
    return predict(question, replace(trace, assumptions=(*trace.assumptions, note)), state)


def answer(plan: Plan, config: dict[str, Any]) -> Prediction | None:
    """Answer a plan from the symbolic traces on disk; ``None`` where none of them holds for it."""
    question: Asked | None = None
    for evaluator in load(plan, config):
        question = question or asked(plan)
        try:
            if evaluator.holds(point_of(evaluator.symbolic, plan), question.target):
                return predict_from(evaluator, question)
        except (FormulaError, OverflowError, ZeroDivisionError, KeyError, TypeError):
            continue
    return None
