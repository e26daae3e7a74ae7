"""A step's timeline for a terminal."""

from __future__ import annotations

from memcalc.advice.explain.timeline import timeline
from memcalc.cli.output import width
from memcalc.errors import MemcalcError
from memcalc.estimation.estimate import Tracer
from memcalc.records.plan import Plan


def drawn(plan: Plan, *, use_cache: bool) -> str:
    """The timeline of a plan in letters.

    Raises:
        MemcalcError: the plan cannot be traced.
    """
    from memcalc.report import terminal

    with Tracer(use_cache=use_cache) as tracer:
        answer = tracer.trace(plan)
    if isinstance(answer, MemcalcError):
        raise answer
    return terminal.timeline(timeline(answer.trace, plan), width=width())
