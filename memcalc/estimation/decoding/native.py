"""Passes of a long decode in compiled code, where there is a compiler and the settings are plain.

``passes.c`` does for large blocks what ``memcalc.allocator`` does; this file hands it the state and
the passes, and reads off what came of them.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from memcalc.allocator.blocks import Block, Pool
from memcalc.allocator.caching import CachingAllocator, FailedRequest
from memcalc.allocator.constants import UNLIMITED
from memcalc.allocator.counter import Levels
from memcalc.estimation.decoding.walk import CALLED, RISE, Sizes
from memcalc.files import compiled
from memcalc.records.decoding import BORN, DIES, EMPTIES, LEFT, Role, aged

SOURCE = Path(__file__).with_name("passes.c")
_NOTHING, _SMALL = -2, -1


class _Figures(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_int64)
        for name in (
            *("large_segment", "available", "allowed", "used", "next_address", "small_free"),
            *("small_requested", "small_rounded", "requested", "bytes", "reserved"),
            *("peak_requested", "peak_bytes", "peak_reserved"),
            *("highest", "at_requested", "at_bytes", "retries", "failed", "failed_rounded"),
            *("is_small", "expandable", "total"),
        )
    )


class _Held(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_int64) for name in ("block", "requested", "rounded"))


def loaded(allocator: CachingAllocator) -> ctypes.CDLL | None:
    """The compiled code; ``None``: there is none, or the allocator does what it does not know."""
    settings = allocator.settings
    plain = not (
        settings.max_split != UNLIMITED
        or allocator.collects
        or any(steps > 1 for steps in settings.divisions)
        or allocator.waiting
        or any(
            block.used_by
            for pool in (allocator.large, allocator.small)
            for block in _blocks(allocator, pool)
        )
    )
    library = compiled.library(SOURCE) if plain else None
    if library is not None:
        library.memcalc_open.restype = ctypes.c_void_p
        for name in ("memcalc_block", "memcalc_play"):
            getattr(library, name).restype = ctypes.c_int64
    return library


def _blocks(allocator: CachingAllocator, pool: Pool) -> list[Block]:
    found = []
    for head in allocator.heads.values():
        block: Block | None = head if head.pool is pool else None
        while block is not None:
            found.append(block)
            block = block.next
    return found


def _figures(allocator: CachingAllocator) -> _Figures:
    stats, device, highest = allocator.stats, allocator.device, allocator.at_reserved_peak
    return _Figures(
        large_segment=allocator.settings.large_segment,
        available=device.available,
        allowed=-1 if allocator.allowed is None else allocator.allowed,
        used=device.used,
        next_address=device.reserve(0),
        small_free=sum(map(_to_give_back, allocator.small)),
        small_requested=stats.small.requested,
        small_rounded=stats.small.bytes,
        requested=stats.large.requested,
        bytes=stats.large.bytes,
        reserved=stats.device.reserved.current,
        peak_reserved=stats.device.reserved.current,
        highest=highest.reserved,
        expandable=allocator.settings.expandable,
        total=device.total,
    )


def _to_give_back(block: Block) -> int:
    """Bytes of a free block that go back to the device where it runs short."""
    segment = block.segment
    if segment is None:
        return 0 if block.is_split else block.size
    offset = block.address - segment.address
    first = -(-offset // segment.granule)
    return max((offset + block.size) // segment.granule - first, 0) * segment.granule


def _figures_of_small(allocator: CachingAllocator) -> _Figures:
    """Those of a device without a limit."""
    return _Figures(
        available=1 << 60,
        allowed=-1,
        next_address=allocator.device.reserve(0),
        is_small=1,
        expandable=allocator.settings.expandable,
        total=allocator.device.total,
    )


class Passes:
    """The state of a pool of an allocator, taken over by compiled code."""

    def __init__(
        self,
        library: ctypes.CDLL,
        allocator: CachingAllocator,
        left: Mapping[Role, Any],
        lasting: frozenset[Role],
        *,
        small: bool = False,
    ) -> None:
        """Take it over.

        Args:
            library: the compiled code.
            allocator: after all that comes before the passes.
            left: what passes before them have left: blocks, or bytes of small ones.
            lasting: names of what dies after the pass that follows its own.
            small: the pool of small blocks is replayed; else that of large ones, and small ones are
                summed.
        """
        self._library, self._allocator, self._lasting = library, allocator, lasting
        self._figures = (_figures_of_small if small else _figures)(allocator)
        self._pool = ctypes.c_void_p(library.memcalc_open(ctypes.byref(self._figures)))
        numbers = {
            block: library.memcalc_block(
                self._pool,
                *map(ctypes.c_int64, (block.stream, block.address, block.size)),
                ctypes.c_int64(block.requested if block.busy else 0),
                ctypes.c_int64(0 if block.segment is None else block.segment.address),
                *map(ctypes.c_int, (block.prev is None, block.mapped)),
            )
            for block in _blocks(allocator, allocator.small if small else allocator.large)
        }
        self._left = {
            role: (numbers[held], 0, 0) if isinstance(held, Block) else (_SMALL, *held)
            for role, held in left.items()
        }

    def close(self) -> None:
        """Let go of its memory."""
        self._library.memcalc_close(self._pool)

    def forget(self, sizes: Sizes) -> None:
        """Free what was left that passes of this piece know nothing of."""
        known = {*sizes.roles, *sizes.piece.left, *self._lasting}
        for role in [role for role in self._left if role not in known]:
            self._library.memcalc_end(self._pool, ctypes.c_int64(self._left.pop(role)[0]))
        self._library.memcalc_read(self._pool, ctypes.byref(self._figures))

    @property
    def most_reserved(self) -> int:
        """Bytes of segments, at most: of small ones, those that passes took; else all there are."""
        return int(self._figures.peak_reserved)

    def play(
        self, sizes: Sizes, plan: Sequence[tuple[Any, ...]], step: int, words: array[int], more: int
    ) -> int:
        """Play passes that do the same.

        Args:
            sizes: of their piece.
            plan: of the first.
            step: the first one's number.
            words: what kernels take in each of them, one after the other.
            more: how many there are.

        Returns:
            How many found room; where that is fewer, ``failed`` says why.
        """
        roles, left = sizes.roles, sizes.piece.left
        named = (*roles, *left, *self._left)
        # Of two that come to bear one name the younger has it.
        older = [aged(role) for role in named] if self._lasting else []
        first = [role for role in older if role in self._lasting]
        by_role = {role: number for number, role in enumerate(dict.fromkeys((*first, *named)))}
        code, slots = _coded(sizes, plan, step, by_role)
        later = array("q", [-1]) * slots
        for role, number in by_role.items() if self._lasting else ():
            later[number] = by_role.get(aged(role), -1)
        held = (_Held * slots)(*(_Held(_NOTHING, 0, 0) for _ in range(slots)))
        for role, what in self._left.items():
            held[by_role[role]] = _Held(*what)
        played = self._library.memcalc_play(
            self._pool,
            _numbers(code),
            ctypes.c_int64(len(code) // 5),
            held,
            _numbers(later),
            ctypes.c_int64(slots),
            _numbers(words),
            *map(ctypes.c_int64, (len(words) // more, step - sizes.piece.at, more)),
        )
        self._left = {
            role: (one.block, one.requested, one.rounded)
            for role, one in zip(by_role, held, strict=False)
            if one.block != _NOTHING
        }
        self._library.memcalc_read(self._pool, ctypes.byref(self._figures))
        return int(played)

    @property
    def peaks(self) -> tuple[int, int, int]:
        """Requested, allocated and reserved."""
        found = self._figures
        return found.peak_requested, found.peak_bytes, found.peak_reserved

    @property
    def retries(self) -> int:
        """How often the cache was emptied to serve a request."""
        return int(self._figures.retries)

    def levels(self) -> Levels:
        """What large blocks take now, and small ones that came before the passes."""
        found = self._figures
        return self._with_small(found.requested, found.bytes, found.reserved)

    def at_reserved_peak(self) -> Levels:
        """The same right after the request that first took reserved to its peak."""
        found, before = self._figures, self._allocator.at_reserved_peak
        if found.highest == before.reserved:
            return before
        return self._with_small(found.at_requested, found.at_bytes, found.highest)

    def failed(self) -> FailedRequest:
        """The request that found no room."""
        found, held = self._figures, self.levels()
        return FailedRequest(
            requested=found.failed,
            asked=self._allocator.segment_size(found.failed_rounded),
            device_free=found.available - found.used,
            allowed=self._allocator.allowed,
            allocated=held.allocated,
            reserved=held.reserved,
        )

    def _with_small(self, requested: int, rounded: int, reserved: int) -> Levels:
        small = self._allocator.stats.small
        rounded += small.bytes
        return Levels(
            requested=requested + small.requested,
            allocated=rounded,
            active=rounded,
            reserved=reserved,
        )


def _numbers(values: array[int]) -> Any:
    return ctypes.cast(values.buffer_info()[0], ctypes.POINTER(ctypes.c_int64))


def _coded(
    sizes: Sizes, plan: Sequence[tuple[Any, ...]], step: int, by_role: Mapping[Role, int]
) -> tuple[array[int], int]:
    """A plan as the compiled code takes it, and how many slots its storages need."""
    # What a pass leaves stays in the slot of its role.
    slots: dict[Any, int] = {n: by_role[role] for n, role in enumerate(sizes.roles)}
    begins = sizes.begins(step)
    count = len(by_role)
    code = array("q")
    for what, key, more, size in plan:
        if what == RISE:
            code.extend((what, key, more, 0, 0))
        elif what in (BORN, CALLED):
            if key not in slots:
                slots[key], count = count, count + 1
            last = (more, size) if what == BORN else (begins[more] + key[1], 0)
            code.extend((what, slots[key], *last, sizes.stream(key)))
        elif what == DIES:
            code.extend((what, slots[key], 0, 0, 0))
        elif what == EMPTIES:
            code.extend((what, 0, 0, 0, 0))
        else:
            code.extend((LEFT, by_role[sizes.piece.left[key]], 0, 0, 0))
    return code, count
