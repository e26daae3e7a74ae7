"""Runs one plan on the simulated GPU and returns the trace of its storages."""

from __future__ import annotations

import contextlib
from itertools import accumulate

from msgspec.structs import replace

from memcalc.children.breadcrumbs import Breadcrumbs
from memcalc.errors import EstimateError
from memcalc.kernels.formulas import bounds, uncounted
from memcalc.kernels.target import Target
from memcalc.records.plan import Plan
from memcalc.records.trace import Bound, Trace
from memcalc.records.walk import changes
from memcalc.trace.decoding import TRACED, Continued, Decoding, Run, continued
from memcalc.trace.folding import fold
from memcalc.trace.folding.accumulation import LEAST, trace_accumulated
from memcalc.trace.folding.tagged import TaggedTrace
from memcalc.trace.passes import NotSteadyError, WrittenCalls
from memcalc.trace.placing import fold_length, ranks
from memcalc.trace.rounds import Rounds
from memcalc.trace.symbolic.symbols import Symbols
from memcalc.trace.tracer import as_trace, tracer
from memcalc.workload import layouts, loops
from memcalc.workload.cache_packages import gathered
from memcalc.workload.prequantised import names_layers
from memcalc.workload.program import Program
from memcalc.workload.quantised import described

_CONTINUED = "repeated layers are traced a few times and continued, proven on one more"


def trace(
    program: Program,
    target: Target,
    *,
    notes: tuple[str, ...] = (),
    breadcrumbs: Breadcrumbs | None = None,
    symbols: Symbols | None = None,
) -> Trace:
    """Train on the simulated GPU for two optimizer steps.

    Args:
        program: what to run; its model is moved, and back on the meta device afterwards.
        target: the GPU and PyTorch to stand for.
        notes: what was assumed so far.
        breadcrumbs: shall always say where the program is.
        symbols: of the program's batches; sizes that hold one are written down as numbers.
    """
    # Passes of a program that ends early are traced as they come.
    tokens = program.plan.generate if program.until is None else None
    if tokens is not None and tokens > (TRACED if movable(program) else _WHOLE):
        kind = program.plan.program
        try:
            if program.plan.gathers and tokens <= _MOST_WHOLE:
                raise NotSteadyError("the cache quantises what it has gathered so far now and then")
            if kind in _unsteady and tokens <= _MOST_WHOLE:
                raise NotSteadyError(_unsteady[kind])
            return _decoded(program, tokens, target, notes, breadcrumbs)
        except NotSteadyError as error:
            _unsteady[kind] = str(error)
            if tokens > _MOST_WHOLE:
                raise EstimateError(
                    f"Decoding cannot be continued from {TRACED} tokens to {tokens}, for {error}: "
                    f"type --generate {_MOST_WHOLE} or less, which is traced pass by pass."
                ) from None
            notes = (*notes, f"passes are traced one by one, for {error}")
    count = program.plan.grad_accum
    if count >= LEAST and loops.of(program.plan).alike:
        few = trace_accumulated(
            lambda number: trace(
                replace(program, plan=replace(program.plan, grad_accum=number)),
                target,
                notes=notes,
                breadcrumbs=breadcrumbs,
                symbols=symbols,
            ),
            count,
        )
        if few is not None:
            return few
    known = {}
    for rank in ranks(program):
        said: dict[str, None] = {}
        missing: dict[str, None] = {}
        bounded: dict[Bound, None] = {}
        once = tracer(
            program,
            target,
            said,
            missing=missing,
            bounded=bounded,
            breadcrumbs=breadcrumbs,
            symbols=symbols,
            rank=rank,
        )
        tagged, folded = _folded(program, once)
        if folded:
            said[_CONTINUED] = None
        if tagged.inventory is not None:
            said[described(tagged.inventory)] = None
        assumptions = dict.fromkeys((*notes, *program.assumptions, *said))
        whole = as_trace(tagged, program, tuple(assumptions))
        known[rank] = replace(whole, uncounted=tuple(missing), bounds=tuple(bounded))
    return _largest(known, layouts.spread(program.plan).world)


def _folded(program: Program, once: fold.Run) -> tuple[TaggedTrace, bool]:
    """A trace continued from a few repetitions of layers, where they are alike; and whether."""
    if layouts.of(program.plan).folds and not names_layers(program.plan):
        return fold.trace_folded(program.model, once, fold_length(program))
    return once([], 0), False


def _decoded(
    program: Program,
    tokens: int,
    target: Target,
    notes: tuple[str, ...],
    breadcrumbs: Breadcrumbs | None,
) -> Trace:
    """A decode of which a few passes are traced."""
    said: dict[str, None] = {}
    calls = WrittenCalls()

    def run(shift: int, until: int) -> TaggedTrace:
        once = tracer(
            program.later(shift, until), target, said, kernels=calls, breadcrumbs=breadcrumbs
        )
        tagged, folded = _folded(program, once)
        if folded:
            said[_CONTINUED] = None
        return tagged

    decoding, found = _repeated(program, tokens, target, run, calls)
    said[decoding.said] = None
    if found.tagged.inventory is not None:
        said[described(found.tagged.inventory)] = None
    said[decoding.said] = None
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


def movable(program: Program) -> bool:
    """Whether a pass is the same after a longer prompt as after so many generated tokens.

    A beam search has no such prompt: it keeps a table of what it has generated. A cache that
    quantises what it has gathered has one now and then: of a prompt it quantises all.
    """
    return program.plan.beams == 1 and not program.plan.gathers


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


def _largest(traces: dict[int, Trace], world: int) -> Trace:
    """Of the processes that train together the one that needs most; it says which."""
    needed = {
        rank: max(accumulate(changes(trace.events, [storage.bytes for storage in trace.storages])))
        for rank, trace in traces.items()
    }
    rank = max(needed, key=lambda rank: needed[rank])
    if world == 1:
        return traces[rank]
    others = [f"rank {other} needs {needed[rank] - needed[other]:,} bytes less" for other in needed]
    others = [words for words, other in zip(others, needed, strict=True) if other != rank]
    said = "; ".join([f"this is rank {rank} of {world}", *others])
    return replace(traces[rank], assumptions=(said, *traces[rank].assumptions))
