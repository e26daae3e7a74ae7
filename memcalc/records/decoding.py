"""How a decode continues: what one pass makes and frees, and how that grows from pass to pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from msgspec.structs import replace

from memcalc.records.storage import Storage

BORN, DIES, LEFT = range(3)
"""What an item is: a storage of the pass is born, or dies, or one that a pass before left dies.
Items are numbers, times three, plus one of these: of the storage among those of its pass, or among
those that passes before have left."""
EMPTIES = -3
"""An item that is none of these: the allocator's cache is emptied."""


Role = tuple[str, str, int]
"""Module and operator that made a storage, and how many of that pass they had made before; of a
storage that outlived the pass after its own, the complement of that number."""


def aged(role: Role) -> Role:
    """The name of what a pass has left once the next pass is over as well."""
    module, op, number = role
    return module, op, min(number, ~number)


def roles(storages: Iterable[Storage]) -> tuple[Role, ...]:
    """Names by which storages of two passes are the same."""
    seen: Counter[tuple[str, str]] = Counter()
    found = []
    for storage in storages:
        key = storage.module, storage.op
        found.append((*key, seen[key]))
        seen[key] += 1
    return tuple(found)


class Call(msgspec.Struct, frozen=True):
    """A kernel's call: its formula's name, its numbers, and what each pass adds to them."""

    name: str
    args: tuple[Any, ...]
    growth: tuple[Any, ...]


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """Passes that do the same with sizes that grow evenly."""

    first: int
    last: int
    at: int
    """The pass in which sizes and calls are as written."""
    storages: tuple[Storage, ...]
    """In order of birth; scratch of kernels stands here by the number of its call, see
    ``memcalc.symbolic.records.code``."""
    growth: tuple[int, ...]
    """Bytes that every pass adds to each of them."""
    items: tuple[int, ...]
    calls: tuple[Call, ...]

    left: tuple[Role, ...] = ()
    """What of passes before dies in this one."""

    @property
    def count(self) -> int:
        """How many passes these are."""
        return self.last - self.first + 1

    @property
    def roles(self) -> tuple[Role, ...]:
        """Of its storages."""
        return roles(self.storages)

    def size(self, number: int, step: int) -> int:
        """Bytes of a storage in a pass."""
        return self.storages[number].bytes + self.growth[number] * (step - self.at)

    def call(self, number: int, step: int) -> tuple[str, tuple[Any, ...]]:
        """Name and arguments of a kernel's call in a pass."""
        call = self.calls[number]
        args: tuple[Any, ...] = grown(call.args, call.growth, step - self.at)
        return call.name, args


class Rise(msgspec.Struct, frozen=True):
    """What each time round adds to a piece of a cycle."""

    bytes: tuple[int, ...]
    """To each of its storages."""
    args: tuple[Any, ...]
    """To the numbers of each of its calls."""


class Cycle(msgspec.Struct, frozen=True, kw_only=True):
    """Passes of several kinds that follow each other again and again, each time on larger sizes."""

    pieces: tuple[Piece, ...]
    """The first time round."""
    rises: tuple[Rise, ...]
    """Of each of them."""
    period: int
    """Passes in one time round."""
    times: int

    def piece(self, number: int, time: int) -> Piece:
        """One of its pieces, so many times later."""
        piece, rise, on = self.pieces[number], self.rises[number], self.period * time
        return replace(
            piece,
            first=piece.first + on,
            last=piece.last + on,
            at=piece.at + on,
            storages=tuple(
                replace(storage, bytes=storage.bytes + more * time) if more else storage
                for storage, more in zip(piece.storages, rise.bytes, strict=True)
            ),
            calls=tuple(
                replace(call, args=grown(call.args, more, time))
                for call, more in zip(piece.calls, rise.args, strict=True)
            ),
        )

    def passes(self) -> Iterator[Piece]:
        """All of it, in order."""
        for time in range(self.times):
            yield from (self.piece(number, time) for number in range(len(self.pieces)))


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """Passes that a trace leaves out between its first ones and the last that it shows."""

    pieces: tuple[Piece, ...]
    first: int
    """Number of the first pass that is continued; those before it are in the trace."""
    last: int
    shown: int
    """Events at the end of the trace that show the last passes."""
    before: tuple[tuple[Role, int], ...]
    """Storages of the trace that the passes before the first have left, and their names."""
    cycle: Cycle | None = None
    """What comes before the pieces."""

    @property
    def kinds(self) -> tuple[Piece, ...]:
        """Pieces of all kinds, once each."""
        return (*(self.cycle.pieces if self.cycle else ()), *self.pieces)

    def passes(self) -> Iterator[Piece]:
        """All pieces, in order."""
        if self.cycle is not None:
            yield from self.cycle.passes()
        yield from self.pieces

    @property
    def lasting(self) -> frozenset[Role]:
        """Names of what dies after the pass that follows its own."""
        return frozenset(role for piece in self.kinds for role in piece.left if role[2] < 0)


def grown(value: Any, growth: Any, times: int) -> Any:
    """Nested numbers after so many passes."""
    if isinstance(value, list | tuple):
        return tuple(grown(one, more, times) for one, more in zip(value, growth, strict=True))
    return value + growth * times if growth else value
