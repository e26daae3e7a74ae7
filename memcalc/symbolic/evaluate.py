"""From a symbolic trace to the trace of one batch, sequence and target."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from memcalc.kernels.attention import call as attention
from memcalc.kernels.attention.choice import choose
from memcalc.kernels.formulas import KernelCall, bounds, scratch, uncounted
from memcalc.kernels.scratch import Scratch
from memcalc.kernels.target import Target
from memcalc.records.trace import Mark, Storage, Trace
from memcalc.records.walk import sections
from memcalc.symbolic.expression import FormulaError, compiled
from memcalc.symbolic.records import (
    SYMBOLIC,
    AttentionChoice,
    Kind,
    Point,
    SymbolicTrace,
    code,
    entry,
)

_NO_SEQ = 0
"""What ``s`` is where inputs have no tokens; no formula uses it then."""


class EventStream(msgspec.Struct, frozen=True):
    """The storages and events of one point; the order is that of a trace."""

    sizes: list[int]
    origins: list[int]
    """The storage of the symbolic trace that each one is, or comes from."""
    events: list[int]
    marks: list[Mark]


class Evaluator:
    """Writes down the trace of any point; formulas are compiled once.

    Raises:
        FormulaError: the symbolic trace holds something that is not a formula.
    """

    def __init__(
        self, symbolic: SymbolicTrace, whole: Callable[[], Trace | None] | None = None
    ) -> None:
        """Compile a symbolic trace.

        Args:
            symbolic: what was learnt.
            whole: gives its trace where it is not part of it yet; ``None`` when it is lost.
        """
        self.symbolic = symbolic
        self._load = whole
        self._sizes = compiled(symbolic.sizes)
        self._conditions = compiled(symbolic.conditions)
        texts: list[str] = []
        self._calls = [(call.name, _numbered(call.args, texts)) for call in symbolic.calls]
        self._choices = [
            (choice, {name: _numbered(value, texts) for name, value in choice.call.items()})
            for choice in symbolic.choices
        ]
        self._arguments = compiled(texts)
        self._table: _SizeTable | None = None

    @property
    def whole(self) -> Trace:
        """The symbolic trace's storages and events."""
        if self._load is not None:
            loaded = self._load()
            if loaded is None:
                raise FormulaError("the symbolic trace's events are lost")
            self.symbolic = replace(self.symbolic, trace=loaded)
            self._load = None
        return self.symbolic.trace

    def holds(self, point: Point, target: Target) -> bool:
        """Is the program's trace at this point and target what the symbolic trace says?"""
        longest = self.symbolic.longest
        if point.seq is not None and longest is not None and point.seq > longest:
            return False
        b, s = _values(point)
        if not all(self._conditions(b, s)):
            return False
        asked = self.symbolic.asked
        if any(repr(getattr(target, name)) != known for name, known in asked.items()):
            return False
        values = self._arguments(b, s)
        return all(
            _chosen(choice, _filled(fields, values), target) == choice.chosen
            for choice, fields in self._choices
        )

    def stream(self, point: Point, target: Target) -> EventStream:
        """Storages and events at a point where the symbolic trace holds.

        Raises:
            FormulaError: a size is no whole number.
        """
        sizes = self._evaluated(point)
        scratch_of_calls = [scratch(call, target) for call in self._called(point)]
        whole = self.whole
        if self._table is None:
            self._table = _SizeTable(whole)
        plain = self._table.sizes(sizes)
        return expand(whole.marks, whole.events, whole.storages, plain, scratch_of_calls)

    def uncounted(self, point: Point, target: Target) -> tuple[str, ...]:
        """What of the kernels' own memory nobody knows there, in words."""
        return uncounted(self._called(point), target)

    def _called(self, point: Point) -> list[KernelCall]:
        values = self._arguments(*_values(point))
        return [KernelCall(name, _filled(args, values)) for name, args in self._calls]

    def storages(self, point: Point, number: Callable[[KernelCall], int]) -> list[Storage]:
        """Storages of ``whole`` at a point; kernels stay calls, written as ``code`` says.

        Args:
            point: where this holds.
            number: gives each call the number that it is written by.

        Raises:
            FormulaError: a size is no whole number.
        """
        sizes, calls = self._evaluated(point), self._called(point)
        numbers = [number(call) for call in calls]
        found = []
        for storage in self.whole.storages:
            size = storage.bytes
            if size >= SYMBOLIC:
                kind, entered = entry(size)
                size = sizes[entered] if kind is Kind.SIZE else code(kind, numbers[entered])
            found.append(_storage(storage, size))
        return found

    def _evaluated(self, point: Point) -> tuple[int, ...]:
        sizes = self._sizes(*_values(point))
        if any(type(size) is not int or size < 1 for size in sizes):
            raise FormulaError("a size is not a positive whole number")
        return sizes

    def trace(self, point: Point, target: Target, notes: tuple[str, ...] = ()) -> Trace:
        """The trace at a point where this holds; ``notes`` were assumed of the target."""
        stream = self.stream(point, target)
        known = self.whole
        return replace(
            known,
            storages=tuple(
                _storage(known.storages[origin], size)
                for origin, size in zip(stream.origins, stream.sizes, strict=True)
            ),
            events=tuple(stream.events),
            marks=tuple(stream.marks),
            seq=point.seq,
            assumptions=(*notes, *known.assumptions),
            uncounted=self.uncounted(point, target),
            bounds=bounds(self._called(point), target),
        )


def _values(point: Point) -> tuple[int, int]:
    return point.batch, point.seq if point.seq is not None else _NO_SEQ


class _Slot(msgspec.Struct, frozen=True):
    number: int


def _numbered(value: Any, texts: list[str]) -> Any:
    """Replace formulas by slots, and collect them."""
    if isinstance(value, str):
        texts.append(value)
        return _Slot(len(texts) - 1)
    if isinstance(value, list | tuple):
        return tuple(_numbered(item, texts) for item in value)
    return value


def _filled(value: Any, values: tuple[Any, ...]) -> Any:
    if isinstance(value, _Slot):
        return values[value.number]
    if isinstance(value, tuple):
        return tuple(_filled(item, values) for item in value)
    if isinstance(value, dict):
        return {name: _filled(item, values) for name, item in value.items()}
    return value


def _chosen(choice: AttentionChoice, fields: dict[str, Any], target: Target) -> str:
    allowed = None
    if choice.allowed is not None:
        allowed = frozenset(attention.Backend(name) for name in choice.allowed)
    call = attention.AttentionCall(dtype=choice.dtype, **fields)
    return choose(call, target, allowed).value


def _storage(known: Storage, size: int) -> Storage:
    return known if known.bytes == size else replace(known, bytes=size)


class _SizeTable:
    """Where in a table of sizes each storage of a trace has its own; 0 stands for a kernel."""

    def __init__(self, trace: Trace) -> None:
        self._known: list[int] = [0]
        places: dict[int, int] = {}
        self._places = [self._place(storage.bytes, places) for storage in trace.storages]

    def _place(self, size: int, places: dict[int, int]) -> int:
        """Counted from the end for sizes that are known, from the front for formulas."""
        if size >= SYMBOLIC:
            kind, number = entry(size)
            return number if kind is Kind.SIZE else -1
        if size not in places:
            self._known.insert(0, size)
            places[size] = -len(self._known)
        return places[size]

    def sizes(self, formulas: tuple[int, ...]) -> list[int]:
        """Bytes of each storage, given those of the formulas."""
        table = [*formulas, *self._known]
        return [table[place] for place in self._places]


def expand(
    marks: Sequence[Mark],
    all_events: Sequence[int],
    storages: Sequence[Storage],
    plain: list[int],
    scratch_of_calls: list[Scratch],
) -> EventStream:
    """Write events down; kernels, whose ``plain`` size is 0, by their scratch.

    Args:
        marks: of the phases.
        all_events: births and deaths; a kernel's are of the two storages that stand for it.
        storages: of them.
        plain: bytes of each.
        scratch_of_calls: what each call takes, by its number.
    """
    stream = EventStream([], [], [], [])
    sizes, origins, events = stream.sizes, stream.origins, stream.events
    numbers: dict[int, int] = {}
    kernels = _ScratchWriter(stream, storages, scratch_of_calls)
    for mark, begin, end in sections(marks, len(all_events)):
        stream.marks.append(replace(mark, index=len(events)))
        for event in all_events[begin:end]:
            if event >= 0:
                if size := plain[event]:
                    numbers[event] = number = len(sizes)
                    sizes.append(size)
                    origins.append(event)
                    events.append(number)
                else:
                    kernels.begin(event)
            elif ~event in numbers:
                events.append(~numbers.pop(~event))
            else:
                kernels.end(~event)
    return stream


class _ScratchWriter:
    """Writes the allocations of kernels where their calls stand in a trace."""

    def __init__(
        self, stream: EventStream, storages: Sequence[Storage], scratch_of_calls: list[Scratch]
    ) -> None:
        self._stream = stream
        self._storages = storages
        self._scratch = scratch_of_calls
        self._taken: list[int] = []
        self._held: dict[int, list[int]] = {}

    def begin(self, storage: int) -> None:
        """A kernel takes what it takes at this moment."""
        kind, number = entry(self._storages[storage].bytes)
        allocations = (
            self._scratch[number].after if kind is Kind.AFTER else self._scratch[number].before
        )
        if kind is not Kind.AFTER:
            self._taken = []
        self._held[storage] = self._taken if kind is Kind.BEFORE else []
        events, sizes = self._stream.events, self._stream.sizes
        for word in allocations:
            if word > 0:
                self._taken.append(len(sizes))
                events.append(len(sizes))
                sizes.append(word)
                self._stream.origins.append(storage)
            else:
                events.append(~self._taken[~word])
                self._taken[~word] = -1

    def end(self, storage: int) -> None:
        """A kernel returns; what it still holds goes with the first of its two parts."""
        for number in self._held.pop(storage):
            if number >= 0:
                self._stream.events.append(~number)
