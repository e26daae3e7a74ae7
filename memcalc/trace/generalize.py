"""Learns how a program's trace grows with batch and sequence: one run on symbols, one proof.

Repeated layers are cut to three for the run on symbols and continued to full depth; the result,
evaluated at the point where it was learnt, must equal a plain trace of the whole program, event
by event. Where that fails the whole program runs on symbols, and must pass the same test.
"""

from __future__ import annotations

from msgspec.structs import replace

from memcalc.children.breadcrumbs import Breadcrumbs
from memcalc.errors import EstimateError
from memcalc.kernels.target import Target
from memcalc.records.trace import Trace
from memcalc.symbolic.evaluate import Evaluator
from memcalc.symbolic.expression import FormulaError
from memcalc.symbolic.records import SYMBOLIC, Point, SymbolicTrace
from memcalc.trace.folding.layers import Stack, find
from memcalc.trace.folding.layers import cut as cut_layers
from memcalc.trace.folding.tagged import TaggedTrace, same
from memcalc.trace.folding.unfold import BASE, CannotUnfoldError, unfold
from memcalc.trace.symbolic.symbols import Symbols
from memcalc.trace.tracer import as_trace, tracer
from memcalc.workload.program import Program


def generalize(
    program: Program, target: Target, known: Trace, *, breadcrumbs: Breadcrumbs | None = None
) -> SymbolicTrace:
    """Trace a program on symbols, at its plan's own batch and sequence.

    Args:
        program: what to run; its plan's batch and sequence are where it is learnt.
        target: the GPU and PyTorch to stand for.
        known: the program's plain trace, without what was assumed of the target.
        breadcrumbs: shall always say where the program is.

    Raises:
        EstimateError: the program cannot run on symbols, or differs then.
    """
    stacks = find(program.model, BASE + 1)
    if stacks:
        try:
            return _proven(_folded(program, target, known, stacks, breadcrumbs), known, target)
        except (CannotUnfoldError, EstimateError):
            pass
    run = _SymbolicRun(program, target, known, breadcrumbs)
    return _proven(run.result(run.once([], 0)), known, target)


class _SymbolicRun:
    """A program on symbols."""

    def __init__(
        self, program: Program, target: Target, known: Trace, breadcrumbs: Breadcrumbs | None
    ) -> None:
        self.point = Point(batch=program.plan.batch, seq=program.seq)
        assert program.inputs is not None
        self.symbols = Symbols(self.point, target.torch, fixed=program.inputs.lengths.exact)
        self.program = program
        self.assumptions = known.assumptions
        resized = program.resized(self.symbols.batch, self.symbols.seq)
        self.once = tracer(resized, target, {}, breadcrumbs=breadcrumbs, symbols=self.symbols)

    def result(self, tagged: TaggedTrace) -> SymbolicTrace:
        """What was learnt so far, for this trace."""
        symbols, inputs = self.symbols, self.program.inputs
        assert inputs is not None
        tokens = self.program.seq is not None
        return SymbolicTrace(
            trace=replace(as_trace(tagged, self.program, self.assumptions), flops=None),
            learnt_at=self.point,
            sizes=symbols.sizes,
            calls=symbols.calls,
            choices=symbols.choices,
            asked=symbols.asked,
            conditions=symbols.conditions(),
            default_seq=inputs.lengths.default if tokens else None,
            longest=inputs.lengths.longest if tokens else None,
        )


def _folded(
    program: Program,
    target: Target,
    known: Trace,
    stacks: list[Stack],
    breadcrumbs: Breadcrumbs | None,
) -> SymbolicTrace:
    run = _SymbolicRun(program, target, known, breadcrumbs)
    with cut_layers(program.model, stacks, BASE):
        base = run.once(stacks, BASE)
    repeats = stacks[0].repeats
    whole = unfold(base, stacks, repeats, {})
    learnt = run.result(whole)
    if not same(_at_hint(learnt, target), known):
        added = _added(learnt, whole, known, repeats - BASE, target)
        learnt = run.result(unfold(base, stacks, repeats, added))
    return learnt


def _added(
    learnt: SymbolicTrace, whole: TaggedTrace, known: Trace, copies: int, target: Target
) -> dict[int, int]:
    """What each repetition adds to storages that hold one entry for every parameter."""
    assert whole.origins is not None
    stream = Evaluator(learnt).stream(learnt.learnt_at, target)
    if len(stream.sizes) != len(known.storages):
        raise CannotUnfoldError("the whole program makes other storages")
    added = {}
    for origin, size, storage in zip(stream.origins, stream.sizes, known.storages, strict=True):
        more, rest = divmod(storage.bytes - size, copies)
        if more or rest:
            if rest or whole.storages[origin].bytes >= SYMBOLIC:
                raise CannotUnfoldError("a size does not grow evenly with the layers")
            added[whole.origins[origin]] = more
    return added


def _proven(learnt: SymbolicTrace, known: Trace, target: Target) -> SymbolicTrace:
    if not same(_at_hint(learnt, target), known):
        raise EstimateError("on symbols the program does not do what it does on numbers")
    return learnt


def _at_hint(learnt: SymbolicTrace, target: Target) -> Trace:
    try:
        evaluator = Evaluator(learnt)
        if not evaluator.holds(learnt.learnt_at, target):
            raise EstimateError("what was learnt does not hold where it was learnt")
        return evaluator.trace(learnt.learnt_at, target)
    except FormulaError as error:
        raise EstimateError(f"on symbols a size has no formula: {error}") from None
