"""Walks over a pass of a decode: what is made and freed, how large, and what kernels take."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any

from memcalc.allocator.constants import SMALL_REQUEST
from memcalc.allocator.settings import AllocatorSettings, round_size
from memcalc.kernels.formulas import KernelCall, scratch
from memcalc.kernels.target import Target
from memcalc.records.decoding import BORN, DIES, EMPTIES, Piece, Role
from memcalc.symbolic.records import SYMBOLIC, Kind, entry


class Names:
    """Names of what pieces make; every time round a cycle they are the same."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[tuple[int, ...], tuple[Role, ...]]] = {}

    def of(self, piece: Piece) -> tuple[Role, ...]:
        """Of its storages."""
        # Each time round has the very same items.
        items = piece.items
        if id(items) not in self._known:
            self._known[id(items)] = items, piece.roles
        return self._known[id(items)][1]


class Sizes:
    """What is asked for in each pass of a piece."""

    def __init__(self, piece: Piece, target: Target, names: Names) -> None:
        self.piece = piece
        self.roles = names.of(piece)
        self._target = target
        self._taken: dict[tuple[int, int], tuple[tuple[int, ...], tuple[int, ...]]] = {}
        self.varying = tuple(n for n, call in enumerate(piece.calls) if _grows(call.growth))

    def stream(self, key: Any) -> int:
        """On which a storage is made, or the scratch of a kernel."""
        return self.piece.storages[key if isinstance(key, int) else key[0]].stream

    def taken(self, number: int, step: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """What a call of a kernel takes in a pass, before and after its outputs."""
        at = step if number in self.varying else self.piece.at
        if (number, at) not in self._taken:
            known = scratch(KernelCall(*self.piece.call(number, at)), self._target)
            if len(self._taken) > 4096:
                self._taken.clear()
            self._taken[number, at] = known.before, known.after
        return self._taken[number, at]

    def word(self, number: int, index: int, step: int) -> int:
        """Bytes of one of the allocations of a call."""
        before, after = self.taken(number, step)
        return [word for word in (*before, *after) if word > 0][index]

    def alike(self, step: int, last: int) -> int:
        """Up to which pass kernels take as many pieces as in this one."""
        if not self.varying:
            return last
        now = self.pattern(step)
        return next((at - 1 for at in range(step + 1, last + 1) if self.pattern(at) != now), last)

    def pattern(self, step: int) -> tuple[Any, ...]:
        """In which order kernels take and free in a pass, whatever the sizes are."""
        both = (self.taken(number, step) for number in self.varying)
        return tuple(tuple(min(word, 1) for word in (*before, *after)) for before, after in both)

    def rows(self, step: int, last: int) -> tuple[array[int], int]:
        """What kernels take in each pass on which they take as many pieces as in this one.

        Returns:
            Bytes, pass by pass, each in the order of ``begins``; and how many passes these are.
        """
        rows: array[int] = array("q")
        known: list[Any] = []
        for at in range(step, last + 1):
            both = [self.taken(number, at) for number in self.varying]
            pattern = [[word > 0 or word for word in (*b, *a)] for b, a in both]
            if at == step:
                known = pattern
            elif pattern != known:
                return rows, at - step
            rows.extend(word for b, a in both for word in (*b, *a) if word > 0)
        return rows, last - step + 1

    def begins(self, step: int) -> dict[int, int]:
        """Where what a call takes begins in the row of a pass, by the call's number."""
        found, begin = {}, 0
        for number in self.varying:
            found[number] = begin
            before, after = self.taken(number, step)
            begin += sum(word > 0 for word in (*before, *after))
        return found

    def steady(self, step: int, most: int) -> int:
        """For how many passes on kernels take what they take in this one."""
        for more in range(1, most + 1 if self.varying else 1):
            if any(self.taken(n, step) != self.taken(n, step + more) for n in self.varying):
                return more - 1
        return most


def _grows(growth: Any) -> bool:
    return any(map(_grows, growth)) if isinstance(growth, list | tuple) else bool(growth)


class Walk:
    """Walks over one pass: births and deaths with their sizes, kernels written out."""

    def __init__(self, sizes: Sizes) -> None:
        self._sizes = sizes
        self._taken: list[Any] = []
        self._held: dict[int, list[Any]] = {}

    def events(self, step: int) -> Iterator[tuple[int, Any, int]]:
        """(what, key, bytes) of each: a storage's number, or a pair for a kernel's scratch."""
        piece = self._sizes.piece
        for item in piece.items:
            if item == EMPTIES:
                yield EMPTIES, None, 0
                continue
            number, what = divmod(item, 3)
            if what not in (BORN, DIES) or piece.storages[number].bytes < SYMBOLIC:
                size = piece.size(number, step) if what == BORN else 0
                yield what, number, size
            elif what == BORN:
                yield from self._begin(number, step)
            else:
                for key in self._held.pop(number, ()):
                    if key is not None:
                        yield DIES, key, 0

    def _begin(self, number: int, step: int) -> Iterator[tuple[int, Any, int]]:
        kind, call = entry(self._sizes.piece.storages[number].bytes)
        before, after = self._sizes.taken(call, step)
        if kind is not Kind.AFTER:
            self._taken = []
        self._held[number] = self._taken if kind is Kind.BEFORE else []
        for word in after if kind is Kind.AFTER else before:
            if word > 0:
                key = (number, len(self._taken))
                self._taken.append(key)
                yield BORN, key, word
            else:
                key, self._taken[~word] = self._taken[~word], None
                yield DIES, key, 0


RISE, CALLED = 8, 9
"""For a moment, small blocks hold so much more; a kernel takes what depends on the pass."""


def unchanged(piece: Piece, step: int) -> int:
    """Up to which pass each storage is small, or large, as it is in this one."""
    until = piece.last
    for storage, growth in zip(piece.storages, piece.growth, strict=True):
        if growth and storage.bytes < SYMBOLIC:
            size = storage.bytes + growth * (step - piece.at)
            if size <= SMALL_REQUEST:
                until = min(until, step + (SMALL_REQUEST - size) // growth)
    return until


Op = tuple[Any, ...]
"""(BORN, key, growth, bytes in the pass ``at``), (CALLED, key, call, 0), (DIES or LEFT, key), or
(EMPTIES, None)."""


def operations(sizes: Sizes, step: int) -> Iterator[tuple[Op, int]]:
    """What happens in a pass, and bytes of what is born; the same in passes that are alike."""
    piece = sizes.piece
    for what, key, size in Walk(sizes).events(step):
        if what != BORN:
            yield (what, key, 0, 0), 0
        elif isinstance(key, int):
            growth = piece.growth[key]
            yield (what, key, growth, size - growth * (step - piece.at)), size
        else:
            call = entry(piece.storages[key[0]].bytes)[1]
            varies = call in sizes.varying
            yield ((CALLED, key, call, 0) if varies else (what, key, 0, size)), size


def plan_of(sizes: Sizes, step: int, settings: AllocatorSettings) -> list[Op]:
    """A pass with its small blocks of constant size, that come and go, in sums."""
    piece = sizes.piece
    ends = {item // 3 for item in piece.items if item % 3 == DIES}
    folded: dict[Any, tuple[int, int]] = {}
    plan: list[Op] = []
    now = top = start_of = [0, 0]
    rises = True
    for op, size in operations(sizes, step):
        what, key, growth, _ = op
        passing = not isinstance(key, int) or key in ends
        if what == BORN and size <= SMALL_REQUEST and not growth and passing:
            folded[key] = size, round_size(size, settings.divisions)
            now = [now[0] + folded[key][0], now[1] + folded[key][1]]
            top = [max(top[0], now[0]), max(top[1], now[1])]
        elif what == DIES and key in folded:
            size, rounded = folded.pop(key)
            now = [now[0] - size, now[1] - rounded]
        else:
            if rises or top != start_of:
                plan.append((RISE, *top, 0))
            plan.append(op)
            # After a birth there is more, whatever is summed; after a death, only where that grew.
            rises, top, start_of = what in (BORN, CALLED), now, now
    plan.append((RISE, *top, 0))
    return plan
