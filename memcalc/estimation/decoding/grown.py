"""Writes a decode of any batch and prompt down from runs of its first passes on symbols.

A pass after so many generated tokens is what it is after a prompt that is longer by as many. So the
formulas of one short decode give what is traced at the start and at the end of a long one, and what
continues a traced decode continues these.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from memcalc.estimation.question import Asked
from memcalc.kernels.formulas import bounds, uncounted
from memcalc.records.trace import Trace
from memcalc.symbolic.evaluate import Evaluator
from memcalc.symbolic.records import Point
from memcalc.trace.decoding import TRACED, Decoding, continued, said_of_passes
from memcalc.trace.folding.tagged import TaggedTrace
from memcalc.trace.passes import WrittenCalls

Find = Callable[[Point], Evaluator]
"""Gives formulas that hold at a point."""


def is_long(tokens: int | None) -> bool:
    """Whether a decode has more passes than are run on symbols."""
    return tokens is not None and tokens > TRACED


def trace_of(question: Asked, point: Point, find: Find) -> Trace:
    """The trace of a long decode, as its plan would be traced.

    Args:
        question: its plan generates more tokens than are run on symbols.
        point: batch and tokens of its prompts.
        find: gives formulas; what it raises is raised.

    Raises:
        NotSteadyError: passes do not repeat.
        FormulaError: the formulas are damaged.
    """
    tokens, target = question.plan.generate, question.target
    assert tokens is not None
    assert point.seq is not None
    first, calls = find(point), WrittenCalls(target.torch)

    def run(shift: int, _until: int) -> TaggedTrace:
        at = Point(batch=point.batch, seq=(point.seq or 0) + shift)
        evaluator = find(at)
        storages = evaluator.storages(at, calls.number)
        known = evaluator.whole
        return TaggedTrace(
            storages=storages,
            storage_tags=[],
            events=list(known.events),
            event_tags=[],
            marks=list(known.marks),
            inventory=known.inventory,
            flops=None,
        )

    found = continued(Decoding(run, calls, tokens, movable=True), tokens, target, calls)
    known = first.whole
    said = (*question.notes, *known.assumptions, said_of_passes(movable=True))
    return replace(
        known,
        storages=tuple(found.tagged.storages),
        events=tuple(found.tagged.events),
        marks=tuple(found.tagged.marks),
        curve=found.curve,
        seq=point.seq,
        assumptions=tuple(dict.fromkeys(said)),
        uncounted=uncounted(calls.calls, target),
        bounds=bounds(calls.calls, target),
    )
