"""Runs one plan on the simulated GPU and returns the trace of its storages."""

from __future__ import annotations

from itertools import accumulate

from msgspec.structs import replace

from memcalc.children.breadcrumbs import Breadcrumbs
from memcalc.kernels.target import Target
from memcalc.records.trace import Bound, Trace
from memcalc.records.walk import changes
from memcalc.trace.folding.accumulation import LEAST, trace_accumulated
from memcalc.trace.generation import decoded, is_long
from memcalc.trace.placing import ranks
from memcalc.trace.symbolic.symbols import Symbols
from memcalc.trace.tracer import as_trace, folded, tracer
from memcalc.workload import layouts, loops
from memcalc.workload.program import Program
from memcalc.workload.quantised import described


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
    if is_long(program):
        found = decoded(program, target, notes, breadcrumbs)
        if isinstance(found, Trace):
            return found
        notes = (*notes, f"passes are traced one by one, for {found}")
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
    known = {
        rank: _of_rank(rank, program, target, notes, breadcrumbs, symbols)
        for rank in ranks(program)
    }
    return _largest(known, layouts.spread(program.plan).world)


def _of_rank(
    rank: int,
    program: Program,
    target: Target,
    notes: tuple[str, ...],
    breadcrumbs: Breadcrumbs | None,
    symbols: Symbols | None,
) -> Trace:
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
    # What symbols learn on the way is to be learnt here.
    tagged = folded(program, once, said, breadcrumbs if symbols is None else None)
    if tagged.inventory is not None:
        said[described(tagged.inventory)] = None
    assumptions = dict.fromkeys((*notes, *program.assumptions, *said))
    whole = as_trace(tagged, program, tuple(assumptions))
    return replace(whole, uncounted=tuple(missing), bounds=tuple(bounded))


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
