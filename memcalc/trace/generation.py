"""A decode of which a few passes are traced, and the others continued from them."""

from __future__ import annotations

import contextlib

from msgspec.structs import replace

from memcalc.children.breadcrumbs import Breadcrumbs
from memcalc.errors import EstimateError
from memcalc.kernels.formulas import bounds, uncounted
from memcalc.kernels.target import Target
from memcalc.records.plan import Plan
from memcalc.records.trace import Trace
from memcalc.trace.decoding import TRACED, Continued, Decoding, Run, continued
from memcalc.trace.folding.tagged import TaggedTrace
from memcalc.trace.passes import NotSteadyError, WrittenCalls
from memcalc.trace.rounds import Rounds
from memcalc.trace.tracer import as_trace, folded, tracer
from memcalc.workload.cache_packages import gathered
from memcalc.workload.program import Program
from memcalc.workload.quantised import described

_unsteady: dict[Plan, str] = {}
"""Programs whose passes did not repeat, and why: at other sizes nobody looks for it again."""
_in_rounds: set[Plan] = set()
"""Programs whose passes come in rounds: at other sizes nobody looks for it again."""
_ALIGNED = 8
"""Passes in a round where a mask or a bias is padded: rows of those that memory-efficient attention
takes begin at multiples of so many numbers.

Source: PyTorch, ``pad_bias`` in native/transformers/attention.cpp."""
_WHOLE = 128
"""Tokens up to which a decode that cannot be traced at its end is traced whole."""
_MOST_WHOLE = 1024
"""Tokens up to which a decode whose passes do not repeat is traced whole."""


def is_long(program: Program) -> bool:
    """It generates more than is traced pass by pass, and does not end early."""
    if program.plan.generate is None or program.until is not None:
        return False
    return program.plan.generate > (TRACED if movable(program) else _WHOLE)


def movable(program: Program) -> bool:
    """Whether a pass is the same after a longer prompt as after so many generated tokens.

    A beam search has no such prompt: it keeps a table of what it has generated. A cache that
    quantises what it has gathered has one now and then: of a prompt it quantises all.
    """
    return program.plan.beams == 1 and not program.plan.gathers


def decoded(
    program: Program,
    target: Target,
    notes: tuple[str, ...],
    breadcrumbs: Breadcrumbs | None,
) -> Trace | str:
    """A long decode of which a few passes are traced.

    Returns:
        Why not, where its passes do not repeat and are few enough to be traced one by one.

    Raises:
        EstimateError: they do not repeat, and are too many.
    """
    assert program.plan.generate is not None
    tokens, kind = program.plan.generate, program.plan.program
    try:
        if program.plan.gathers and tokens <= _MOST_WHOLE:
            raise NotSteadyError("the cache quantises what it has gathered so far now and then")
        if kind in _unsteady and tokens <= _MOST_WHOLE:
            raise NotSteadyError(_unsteady[kind])
        return _continued(program, tokens, target, notes, breadcrumbs)
    except NotSteadyError as error:
        _unsteady[kind] = str(error)
        if tokens > _MOST_WHOLE:
            raise EstimateError(
                f"Decoding cannot be continued from {TRACED} tokens to {tokens}, for {error}: "
                f"type --generate {_MOST_WHOLE} or less, which is traced pass by pass."
            ) from None
        return str(error)


def _continued(
    program: Program,
    tokens: int,
    target: Target,
    notes: tuple[str, ...],
    breadcrumbs: Breadcrumbs | None,
) -> Trace:
    said: dict[str, None] = {}
    calls = WrittenCalls(target.torch)

    def run(shift: int, until: int) -> TaggedTrace:
        once = tracer(
            program.later(shift, until), target, said, kernels=calls, breadcrumbs=breadcrumbs
        )
        return folded(program, once, said)

    decoding, found = _repeated(program, tokens, target, run, calls)
    said[decoding.said] = None
    if found.tagged.inventory is not None:
        said[described(found.tagged.inventory)] = None
    assumptions = dict.fromkeys((*notes, *program.assumptions, *said))
    return replace(
        as_trace(found.tagged, program, tuple(assumptions)),
        curve=found.curve,
        uncounted=uncounted(calls.calls, target),
        bounds=bounds(calls.calls, target),
    )


def _repeated(
    program: Program, tokens: int, target: Target, run: Run, calls: WrittenCalls
) -> tuple[Decoding, Continued]:
    """The decode as its passes repeat: one by one, or in rounds.

    Raises:
        NotSteadyError: they do not.
    """
    kind = program.plan.program
    if program.plan.gathers:
        if program.plan.beams > 1:
            raise NotSteadyError("a beam search over a cache that quantises is not continued")
        decoding: Decoding = Rounds(
            run, calls, tokens, period=gathered(program.plan.cache), lasting=True
        )
        return decoding, continued(decoding, tokens, target, calls)
    one_by_one = Decoding(run, calls, tokens, movable=movable(program))
    if kind in _in_rounds or one_by_one.changes_soon():
        decoding = Rounds(run, calls, tokens, period=_ALIGNED)
        with contextlib.suppress(NotSteadyError):
            found = continued(decoding, tokens, target, calls)
            _in_rounds.add(kind)
            return decoding, found
    return one_by_one, continued(one_by_one, tokens, target, calls)
