"""Learns how a program's trace grows with batch and sequence: one run on symbols, one proof.

Repeated layers are cut to three for the run on symbols and continued to full depth; the result,
evaluated at the point where it was learnt, must equal a plain trace of the whole program, event
by event. Where that fails the whole program runs on symbols, and must pass the same test.
"""

from __future__ import annotations

from msgspec.structs import replace

from memcalc.errors import EstimateError
from memcalc.growth.evaluate import Evaluator
from memcalc.growth.expression import FormulaError
from memcalc.growth.records import SYMBOLIC, Growth, Point
from memcalc.kernels.target import Target
from memcalc.records.trace import Trace
from memcalc.trace.folding.layers import Stack, find
from memcalc.trace.folding.layers import cut as cut_layers
from memcalc.trace.folding.raw import Raw, same
from memcalc.trace.folding.unfold import BASE, CannotUnfoldError, unfold
from memcalc.trace.run import as_trace, tracer
from memcalc.trace.symbolic.symbols import Symbols
from memcalc.workload.program import Program


def grow(program: Program, target: Target, known: Trace, *, breadcrumbs: str = "") -> Growth:
    """Learn a growth at a program's own batch and sequence.

    Args:
        program: what to run; its plan's batch and sequence are where it is learnt.
        target: the GPU and PyTorch to stand for.
        known: the program's plain trace, without what was assumed of the target.
        breadcrumbs: file that shall always say where the program is; empty for none.

    Raises:
        EstimateError: the program cannot run on symbols, or differs then.
    """
    stacks = find(program.model, BASE + 1)
    if stacks:
        try:
            return _proven(_folded(program, target, known, stacks, breadcrumbs), known, target)
        except (CannotUnfoldError, EstimateError):
            pass
    learner = _Learner(program, target, known, breadcrumbs)
    return _proven(learner.growth(learner.once([], 0)), known, target)


class _Learner:
    """A program on symbols."""

    def __init__(self, program: Program, target: Target, known: Trace, breadcrumbs: str) -> None:
        self.point = Point(batch=program.plan.batch, seq=program.seq)
        assert program.inputs is not None
        self.symbols = Symbols(self.point, fixed=program.inputs.exact)
        self.program = program
        self.assumptions = known.assumptions
        resized = program.resized(self.symbols.batch, self.symbols.seq)
        self.once = tracer(resized, target, {}, breadcrumbs=breadcrumbs, symbols=self.symbols)

    def growth(self, raw: Raw) -> Growth:
        """What was learnt so far, for this trace."""
        symbols, inputs = self.symbols, self.program.inputs
        assert inputs is not None
        tokens = self.program.seq is not None
        return Growth(
            trace=replace(as_trace(raw, self.program, self.assumptions), flops=None),
            learnt_at=self.point,
            sizes=symbols.sizes,
            calls=symbols.calls,
            choices=symbols.choices,
            conditions=symbols.conditions(),
            default_seq=inputs.default_seq if tokens else None,
            longest=inputs.longest if tokens else None,
        )


def _folded(
    program: Program, target: Target, known: Trace, stacks: list[Stack], breadcrumbs: str
) -> Growth:
    learner = _Learner(program, target, known, breadcrumbs)
    with cut_layers(program.model, stacks, BASE):
        base = learner.once(stacks, BASE)
    repeats = stacks[0].repeats
    whole = unfold(base, stacks, repeats, {})
    learnt = learner.growth(whole)
    if not same(_at_hint(learnt, target), known):
        added = _added(learnt, whole, known, repeats - BASE, target)
        learnt = learner.growth(unfold(base, stacks, repeats, added))
    return learnt


def _added(learnt: Growth, whole: Raw, known: Trace, copies: int, target: Target) -> dict[int, int]:
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


def _proven(learnt: Growth, known: Trace, target: Target) -> Growth:
    if not same(_at_hint(learnt, target), known):
        raise EstimateError("on symbols the program does not do what it does on numbers")
    return learnt


def _at_hint(learnt: Growth, target: Target) -> Trace:
    try:
        evaluator = Evaluator(learnt)
        if not evaluator.holds(learnt.learnt_at, target):
            raise EstimateError("what was learnt does not hold where it was learnt")
        return evaluator.trace(learnt.learnt_at, target)
    except FormulaError as error:
        raise EstimateError(f"on symbols a size has no formula: {error}") from None
