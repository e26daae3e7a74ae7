"""Continues a decode from a few passes that are traced to any number, proven at both ends.

Passes of one token repeat, with sizes that grow evenly. How they grow is learnt from two passes and
proven on a third; the same is traced at the end, after a prompt that is longer by what lies
between. Where the two disagree, as where a sliding window has filled, the places between are traced
until every pass is known to be like one that was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from msgspec.structs import replace

from memcalc.kernels.formulas import KernelCall, scratch
from memcalc.kernels.scratch import Allocations
from memcalc.kernels.target import Target
from memcalc.records.decoding import BORN, DIES, LEFT, Call, Curve, Piece, Role, roles
from memcalc.records.trace import Mark, Phase, Storage
from memcalc.records.walk import sections
from memcalc.symbolic.evaluate import expand
from memcalc.symbolic.records import SYMBOLIC, Kind, code, entry
from memcalc.trace.folding.tagged import TaggedTrace

TRACED = 6
"""Tokens of a trace that is continued: in all of its passes but the first, which frees what the
prompt's pass has left, and the last, which ends, the same happens."""
_AT = 3
MOST_EVENTS = 400_000
"""Up to so many all passes are written down."""
_SHOWN = 3
"""Of more, these at the end."""
_MOST_TRACES = 24
_FEW_TRACES = 8
_WORTH = 16
"""Passes that a trace has to stand for: where each stands for few, all are traced as they come."""


class WrittenCalls:
    """Writes calls of kernels down instead of what they take; the interface of KernelMemory."""

    def __init__(self) -> None:
        self.calls: dict[KernelCall, int] = {}

    def transient(self, call: KernelCall) -> tuple[Allocations, Allocations]:
        """Before and after the outputs, as two numbers."""
        number = self.number(call)
        return (code(Kind.BEFORE, number),), (code(Kind.AFTER, number),)

    def persistent(self, call: KernelCall) -> Allocations:
        """The same for what a library keeps."""
        return (code(Kind.PERSISTENT, self.number(call)),)

    def number(self, call: KernelCall) -> int:
        """The number that stands for a call."""
        return self.calls.setdefault(call, len(self.calls))


class _Pass(msgspec.Struct, frozen=True):
    """What one traced pass makes and frees."""

    storages: list[Storage]
    items: tuple[int, ...]
    left: tuple[Role, ...]
    """Of the pass before, what dies in this one."""
    numbers: list[int]
    """Of its storages in the trace."""


class NotSteadyError(Exception):
    """Passes do not repeat."""


def said_of_passes(*, movable: bool) -> str:
    """How passes were learnt, for an answer's assumptions."""
    where = "at the start and the end" if movable else "at the start"
    return f"passes of decoding are traced {where} and continued, proven on one more"


Run = Callable[[int], TaggedTrace]
"""Traces ``TRACED`` tokens after the prompt and so many tokens more, as part of the whole."""


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
        self._known: dict[int, dict[int, _Pass]] = {}
        self.base: TaggedTrace | None = None

    def pieces(self) -> tuple[Piece, ...]:
        """How passes continue after those that are traced from the start.

        Raises:
            NotSteadyError: they do not.
        """
        if not self._movable:
            return (self._piece(0, _AT + 1, self._tokens - 1),)
        return (*self._steady(_AT + 1, self._tokens - 2), self._final())

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
        step = self._tokens - 1
        seen = self._passes(self._latest)[TRACED - 1]
        born = [at for at, item in enumerate(seen.items) if item >= 0 and item % 3 == BORN]
        items = tuple(item for item in seen.items[: born[-1] + 1] if item >= 0)
        cut = _Pass(seen.storages, items, seen.left, seen.numbers)
        return self._made(cut, [0] * len(seen.storages), step, step, step, cut)

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
        seen = self._seen(step)
        if (seen.items, seen.left) != (piece.items, piece.left):
            return False
        if len(seen.storages) != len(piece.storages):
            return False
        return all(
            self._same(piece, number, storage, step) for number, storage in enumerate(seen.storages)
        )

    def _seen(self, step: int) -> _Pass:
        """A pass as traced: the third of a trace, for earlier ones have what the prompt left."""
        shift = min(step - _AT, self._latest)
        return self._passes(shift)[step - shift]

    def _same(self, piece: Piece, number: int, storage: Storage, step: int) -> bool:
        like = piece.storages[number]
        if _kind(like) != _kind(storage):
            return False
        if like.bytes < SYMBOLIC:
            return piece.size(number, step) == storage.bytes
        (kind, call), (seen_kind, seen) = entry(like.bytes), entry(storage.bytes)
        known = list(self._calls.calls)[seen]
        return kind is seen_kind and piece.call(call, step) == (known.name, known.args)

    def _literal(self, step: int) -> Piece:
        seen = self._seen(step)
        return self._made(seen, [0] * len(seen.storages), step, step, step, seen)

    def _piece(self, shift: int, first: int, last: int) -> Piece:
        """What the passes of a trace have in common."""
        passes = self._passes(shift)
        one, two, three = (passes[step] for step in (_AT - 1, _AT, _AT + 1))
        if not one.items == two.items == three.items or not one.left == two.left == three.left:
            raise NotSteadyError("passes free different things")
        growth = []
        for early, seen, late in zip(one.storages, two.storages, three.storages, strict=True):
            kinds = {(*_kind(s), s.bytes >= SYMBOLIC) for s in (early, seen, late)}
            if len(kinds) > 1:
                raise NotSteadyError("passes make different things")
            more = seen.bytes - early.bytes if seen.bytes < SYMBOLIC else 0
            if seen.bytes < SYMBOLIC and late.bytes - seen.bytes != more:
                raise NotSteadyError("sizes do not grow evenly")
            growth.append(more)
        made = self._made(two, growth, shift + _AT, first, last, one)
        if not all(
            self._same(made, number, storage, shift + _AT + 1)
            for number, storage in enumerate(three.storages)
        ):
            raise NotSteadyError("what kernels are called with does not grow evenly")
        return made

    def _made(
        self, seen: _Pass, growth: list[int], at: int, first: int, last: int, before: _Pass
    ) -> Piece:
        """A piece like this pass; its kernels' calls grow as since the pass before."""
        known = list(self._calls.calls)
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
                call, earlier = known[number], known[old]
                calls[old, number] = len(listed)
                listed.append(Call(call.name, call.args, _difference(earlier.args, call.args)))
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

    def _passes(self, shift: int) -> dict[int, _Pass]:
        """The passes of a trace that begins so many tokens later."""
        if shift not in self._known:
            if len(self._known) >= min(max(self._tokens // _WORTH, _FEW_TRACES), _MOST_TRACES):
                raise NotSteadyError("too many kinds of passes follow each other")
            traced = self._run(shift)
            if traced.asides:
                raise NotSteadyError("the allocator's cache is emptied between passes")
            if shift == 0:
                self.base = traced
            self._known[shift] = _passes(traced)
        return self._known[shift]


def _kind(storage: Storage) -> tuple[Any, ...]:
    return storage.module, storage.op, storage.component, storage.stream


def _difference(early: Any, late: Any) -> Any:
    if isinstance(late, list | tuple):
        if not isinstance(early, list | tuple) or len(early) != len(late):
            raise NotSteadyError("kernels are called with other arguments")
        return tuple(_difference(one, two) for one, two in zip(early, late, strict=True))
    return late - early if not isinstance(late, str | bool | None) else 0


def _passes(traced: TaggedTrace) -> dict[int, _Pass]:
    found: dict[int, _Pass] = {}
    before: dict[int, Role] = {}
    for mark, begin, end in sections(traced.marks, len(traced.events)):
        if mark.phase is Phase.DECODE:
            made = _pass(traced, before, begin, end)
            found[mark.step] = made
            before = dict(zip(made.numbers, roles(made.storages), strict=True))
    return found


def _pass(traced: TaggedTrace, before: dict[int, Role], begin: int, end: int) -> _Pass:
    made: dict[int, int] = {}
    items: list[int] = []
    left: list[Role] = []
    # Storages that die one right after the other do so in any order.
    dying: list[tuple[int, Role]] = []

    def settle() -> None:
        for number, role in sorted(dying):
            if number != _LEFT:
                items.append(number)
            else:
                items.append(3 * len(left) + LEFT)
                left.append(role)
        dying.clear()

    for event in traced.events[begin:end]:
        if event >= 0:
            settle()
            items.append(3 * len(made) + BORN)
            made[event] = len(made)
        elif ~event in made:
            dying.append((3 * made[~event] + DIES, ("", "", 0)))
        elif ~event in before:
            dying.append((_LEFT, before[~event]))
        else:
            # Of an earlier pass: where it matters, passes are not steady.
            dying.append((_OLDER, ("", "", 0)))
    settle()
    return _Pass([traced.storages[n] for n in made], tuple(items), tuple(left), list(made))


_LEFT = 1 << 40
_OLDER = -1


class Continued(msgspec.Struct, frozen=True):
    """A decode of any length: the trace of it, whole or with its middle left out."""

    tagged: TaggedTrace
    curve: Curve | None


def continued(decoding: Decoding, tokens: int, target: Target, calls: WrittenCalls) -> Continued:
    """Write a decode down.

    Raises:
        NotSteadyError: its passes do not repeat.
    """
    pieces = decoding.pieces()
    if any(-1 in piece.items for piece in pieces):
        raise NotSteadyError("a pass frees what an earlier one has left")
    base = decoding.base
    assert base is not None
    writer = _Writer(base, calls)
    last = tokens - 1
    count = sum((p.last - p.first + 1) * len(p.items) for p in pieces)
    shown_from = _AT + 1 if count <= MOST_EVENTS else max(last - _SHOWN + 1, _AT + 1)
    for piece in pieces:
        for step in range(max(piece.first, shown_from), piece.last + 1):
            writer.append(piece, step)
    trace, shown = writer.expanded(target, shown_from)
    if shown_from == _AT + 1:
        return Continued(trace, None)
    before = writer.before()
    curve = Curve(pieces=pieces, first=_AT + 1, last=last, shown=shown, before=before)
    return Continued(trace, curve)


class _Writer:
    """Writes passes behind those that were traced."""

    def __init__(self, base: TaggedTrace, calls: WrittenCalls) -> None:
        ends = [mark.index for mark in base.marks if mark.phase is Phase.DECODE]
        self._end = ends[_AT]
        self._marks = [mark for mark in base.marks if mark.index < self._end]
        self._marks = [m for m in self._marks if m.phase is not Phase.DECODE or m.step <= _AT]
        self._events = list(base.events[: self._end])
        self._storages = list(base.storages)
        self._calls = dict(calls.calls)
        self._inventory = base.inventory
        third = _passes(base)[_AT]
        held = set(self._events) - {~event for event in self._events if event < 0}
        self._left = {
            role: number
            for role, number in zip(roles(third.storages), third.numbers, strict=True)
            if number in held
        }
        self._before = tuple(number if number in held else -1 for number in third.numbers)

    def before(self) -> tuple[int, ...]:
        """Storages that the last traced pass has left."""
        return self._before

    def append(self, piece: Piece, step: int) -> None:
        """Write one pass down."""
        self._marks.append(Mark(index=len(self._events), phase=Phase.DECODE, step=step))
        left, made = self._left, {}
        for item in piece.items:
            number, what = divmod(item, 3)
            if what == BORN:
                made[number] = len(self._storages)
                self._events.append(len(self._storages))
                self._storages.append(self._storage(piece, number, step))
            elif what == DIES:
                self._events.append(~made.pop(number))
            elif piece.left[number] in left:
                self._events.append(~left.pop(piece.left[number]))
        named = piece.roles
        self._left = {named[number]: storage for number, storage in made.items()}

    def _storage(self, piece: Piece, number: int, step: int) -> Storage:
        storage = piece.storages[number]
        if storage.bytes < SYMBOLIC:
            return replace(storage, bytes=piece.size(number, step), step=step)
        kind, call = entry(storage.bytes)
        known = KernelCall(*piece.call(call, step))
        return replace(
            storage,
            bytes=code(kind, self._calls.setdefault(known, len(self._calls))),
            step=step,
        )

    def expanded(self, target: Target, shown_from: int) -> tuple[TaggedTrace, int]:
        """The trace with what kernels take in place of their calls; events of what is shown."""
        taken = [scratch(call, target) for call in self._calls]
        plain = [0 if s.bytes >= SYMBOLIC else s.bytes for s in self._storages]
        stream = expand(self._marks, self._events, self._storages, plain, taken)
        storages = [
            replace(self._storages[origin], bytes=size)
            for origin, size in zip(stream.origins, stream.sizes, strict=True)
        ]
        first = next(m.index for m in stream.marks if m.step == shown_from)
        traced = TaggedTrace(
            storages=storages,
            storage_tags=[],
            events=stream.events,
            event_tags=[],
            marks=stream.marks,
            inventory=self._inventory,
            flops=None,
        )
        numbers = {origin: n for n, origin in enumerate(stream.origins)}
        self._before = tuple(numbers.get(n, -1) if n >= 0 else -1 for n in self._before)
        return traced, len(stream.events) - first
