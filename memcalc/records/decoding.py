"""How a decode continues: what one pass makes and frees, and how that grows from pass to pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import msgspec

from memcalc.records.storage import Storage

BORN, DIES, LEFT = range(3)
"""What an item is: a storage of the pass is born, or dies, or one that the pass before left dies.
Items are numbers, times three, plus one of these: of the storage among those of its pass, or among
those that the pass before has left."""


Role = tuple[str, str, int]
"""Module and operator that made a storage, and how many of that pass they had made before."""


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
    """What of the pass before dies in this one."""

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


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """Passes that a trace leaves out between its first ones and the last that it shows."""

    pieces: tuple[Piece, ...]
    first: int
    """Number of the first pass that is continued; those before it are in the trace."""
    last: int
    shown: int
    """Events at the end of the trace that show the last passes."""
    before: tuple[int, ...]
    """Storages of the trace that the pass before the first has left, by number among those of a
    pass; -1: it is not there any more."""


def grown(value: Any, growth: Any, times: int) -> Any:
    """Nested numbers after so many passes."""
    if isinstance(value, list | tuple):
        return tuple(grown(one, more, times) for one, more in zip(value, growth, strict=True))
    return value + growth * times if growth else value
