"""Continues a decode from a few passes that are traced to any number, proven at both ends.

Passes of one token repeat, with sizes that grow evenly. How they grow is learnt from two passes and
proven on a third; the same is traced at the end, after a prompt that is longer by what lies
between. Where the two disagree, as where a sliding window has filled, the places between are traced
until every pass is known to be like one that was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
from msgspec.structs import replace

from memcalc.kernels.target import Target
from memcalc.records.decoding import Call, Curve, Cycle, Piece
from memcalc.records.trace import Storage
from memcalc.symbolic.records import SYMBOLIC, code, entry
from memcalc.trace.folding.tagged import TaggedTrace
from memcalc.trace.passes import (
    OLDER,
    NotSteadyError,
    Pass,
    WrittenCalls,
    difference,
    ending,
    kind_of,
    passes_of,
)
from memcalc.trace.passes_written import Writer

TRACED = 6
"""Tokens of a trace that is continued: in all of its passes but the first, which frees what the
prompt's pass has left, and the last, which ends, the same happens."""
AT = 3
MOST_EVENTS = 400_000
"""Up to so many all passes are written down."""
_SHOWN = 3
"""Of more, these at the end."""
_FEW = 8
_MOST_TRACES = 24
_FEW_TRACES = 8
_WORTH = 16
"""Passes that a trace has to stand for: where each stands for few, all are traced as they come."""


def said_of_passes(*, movable: bool) -> str:
    """How passes were learnt, for an answer's assumptions."""
    where = "at the start and the end" if movable else "at the start"
    return f"passes of decoding are traced {where} and continued, proven on one more"


Run = Callable[[int, int], TaggedTrace]
"""Traces tokens after the prompt and so many tokens more, as part of the whole: from which on, and
how many."""


class Decoding:
    """Traces of one decode and what is learnt of them."""

    def __init__(self, run: Run, calls: WrittenCalls, tokens: int, *, movable: bool) -> None:
        """Trace nothing yet.

        Args:
            run: traces the decode, later or earlier in it.
            calls: filled by the traces.
            tokens: to generate.
            movable: after a longer prompt a pass is what it is after as many generated tokens.
        """
        self._movable = movable
        self._run = run
        self._calls = calls
        self._tokens = tokens
        self._known: dict[int, dict[int, Pass]] = {}
        self.base: TaggedTrace | None = None
        self.first = AT + 1
        """The first pass that is continued."""
        self.cycle: Cycle | None = None
        """What comes before the pieces."""

    @property
    def said(self) -> str:
        """How passes were learnt, for an answer's assumptions."""
        return said_of_passes(movable=self._movable)

    def pieces(self) -> tuple[Piece, ...]:
        """How passes continue after those that are traced from the start.

        Raises:
            NotSteadyError: they do not.
        """
        if not self._movable:
            return (self._piece(0, AT + 1, self._tokens - 1),)
        return (*self._steady(AT + 1, self._tokens - 2), self._final())

    def changes_soon(self) -> bool:
        """Whether passes are of one kind at the start, and of another a few passes later.

        Raises:
            NotSteadyError: at the start they are not of one kind.
        """
        few = AT + 1 + _FEW
        if not self._movable or few > self._tokens - 2:
            return False
        try:
            near = self._piece(0, AT + 1, few)
        except NotSteadyError:
            return True
        return not self._agrees(near, few)

    def _until(self, _shift: int) -> int:
        """How many tokens a trace holds."""
        return TRACED

    @property
    def _latest(self) -> int:
        """The latest beginning of a trace."""
        return self._tokens - TRACED

    def _steady(self, first: int, last: int) -> Iterator[Piece]:
        """All passes but the last, which ends."""
        near = self._piece(0, first, last)
        while first <= last:
            end = self._end_of(near, first, last)
            yield replace(near, first=first, last=end)
            # Where one kind of pass becomes another, the passes around are taken as they are.
            for step in range(end + 1, min(end + 2, last) + 1):
                yield self._literal(step)
            first = end + 3
            if first - 2 > self._latest:
                for step in range(first, last + 1):
                    yield self._literal(step)
                return
            if first <= last:
                near = self._piece(first - 2, first, last)

    def _final(self) -> Piece:
        """The last pass, up to the last that it makes."""
        return self._as_traced(ending(self._passes(self._latest)[TRACED - 1]), self._tokens - 1)

    def _end_of(self, near: Piece, first: int, last: int) -> int:
        """The last pass that is as ``near`` foretells; every pass between is taken to be."""
        if self._agrees(near, last):
            return last
        low, high = first, last
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._agrees(near, middle) else (low, middle)
        return low

    def _agrees(self, piece: Piece, step: int) -> bool:
        return self._is_as(piece, step, self._seen(step))

    def _is_as(self, piece: Piece, step: int, seen: Pass) -> bool:
        """Whether a pass is as a piece foretells."""
        if (seen.items, seen.left) != (piece.items, piece.left):
            return False
        if len(seen.storages) != len(piece.storages):
            return False
        return all(
            self._same(piece, number, storage, step) for number, storage in enumerate(seen.storages)
        )

    def _seen(self, step: int) -> Pass:
        """A pass as traced: the third of a trace, for earlier ones have what the prompt left."""
        shift = min(step - AT, self._latest)
        return self._passes(shift)[step - shift]

    def _same(self, piece: Piece, number: int, storage: Storage, step: int) -> bool:
        like = piece.storages[number]
        if kind_of(like) != kind_of(storage):
            return False
        if like.bytes < SYMBOLIC:
            return piece.size(number, step) == storage.bytes
        (kind, call), (seen_kind, seen) = entry(like.bytes), entry(storage.bytes)
        known = self._calls.at(seen)
        return kind is seen_kind and piece.call(call, step) == (known.name, known.args)

    def _literal(self, step: int) -> Piece:
        return self._as_traced(self._seen(step), step)

    def _as_traced(self, seen: Pass, step: int) -> Piece:
        """A piece of one pass."""
        return self._made(seen, [0] * len(seen.storages), step, step, step, seen)

    def _piece(self, shift: int, first: int, last: int) -> Piece:
        """What the passes of a trace have in common."""
        passes = self._passes(shift)
        one, two, three = (passes[step] for step in (AT - 1, AT, AT + 1))
        if not one.items == two.items == three.items or not one.left == two.left == three.left:
            raise NotSteadyError("passes free different things")
        growth = []
        for early, seen, late in zip(one.storages, two.storages, three.storages, strict=True):
            kinds = {(*kind_of(s), s.bytes >= SYMBOLIC) for s in (early, seen, late)}
            if len(kinds) > 1:
                raise NotSteadyError("passes make different things")
            more = seen.bytes - early.bytes if seen.bytes < SYMBOLIC else 0
            if seen.bytes < SYMBOLIC and late.bytes - seen.bytes != more:
                raise NotSteadyError("sizes do not grow evenly")
            growth.append(more)
        made = self._made(two, growth, shift + AT, first, last, one)
        if not all(
            self._same(made, number, storage, shift + AT + 1)
            for number, storage in enumerate(three.storages)
        ):
            raise NotSteadyError("what kernels are called with does not grow evenly")
        return made

    def _made(
        self, seen: Pass, growth: list[int], at: int, first: int, last: int, before: Pass
    ) -> Piece:
        """A piece like this pass; its kernels' calls grow as since the pass before."""
        calls: dict[tuple[int, int], int] = {}
        listed: list[Call] = []
        storages = []
        for early, storage in zip(before.storages, seen.storages, strict=True):
            if storage.bytes < SYMBOLIC:
                storages.append(storage)
                continue
            kind, number = entry(storage.bytes)
            old = entry(early.bytes)[1]
            if (old, number) not in calls:
                call, earlier = self._calls.at(number), self._calls.at(old)
                calls[old, number] = len(listed)
                listed.append(Call(call.name, call.args, difference(earlier.args, call.args)))
            storages.append(replace(storage, bytes=code(kind, calls[old, number])))
        return Piece(
            first=first,
            last=last,
            at=at,
            storages=tuple(storages),
            growth=tuple(growth),
            items=seen.items,
            calls=tuple(listed),
            left=seen.left,
        )

    def _passes(self, shift: int) -> dict[int, Pass]:
        """The passes of a trace that begins so many tokens later."""
        if shift not in self._known:
            if len(self._known) >= min(max(self._tokens // _WORTH, _FEW_TRACES), _MOST_TRACES):
                raise NotSteadyError("too many kinds of passes follow each other")
            traced = self._run(shift, self._until(shift))
            if shift == 0:
                self.base = traced
            self._known[shift] = passes_of(traced)
        return self._known[shift]


class Continued(msgspec.Struct, frozen=True):
    """A decode of any length: the trace of it, whole or with its middle left out."""

    tagged: TaggedTrace
    curve: Curve | None


def continued(decoding: Decoding, tokens: int, target: Target, calls: WrittenCalls) -> Continued:
    """Write a decode down.

    Raises:
        NotSteadyError: its passes do not repeat.
    """
    pieces, cycle = decoding.pieces(), decoding.cycle
    base = decoding.base
    assert base is not None
    first, last = decoding.first, tokens - 1
    curve = Curve(pieces=pieces, cycle=cycle, first=first, last=last, shown=0, before=())
    if any(OLDER in piece.items for piece in curve.kinds):
        raise NotSteadyError("a pass frees what an earlier one has left")
    writer = Writer(base, calls, first)
    count = sum(piece.count * len(piece.items) for piece in pieces)
    if cycle is not None:
        count += cycle.times * sum(piece.count * len(piece.items) for piece in cycle.pieces)
    shown_from = first if count <= MOST_EVENTS else max(last - _SHOWN + 1, first)
    for piece in curve.passes():
        for step in range(max(piece.first, shown_from), piece.last + 1):
            writer.append(piece, step)
    trace, shown, before = writer.expanded(target, shown_from)
    if shown_from == first:
        return Continued(trace, None)
    return Continued(trace, replace(curve, shown=shown, before=before))
