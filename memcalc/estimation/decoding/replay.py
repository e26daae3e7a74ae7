"""Replays a long decode: every pass whose blocks differ, of thousands that are like another.

Small blocks are exactly as large as their rounded request, so their bytes are summed; only the
segments they lie in need a replay, which is made of passes spread over the decode. Large blocks are
replayed pass by pass, but for stretches in which each request is known to be served by the same
blocks again: a request that grows stays in its block until that is full.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from memcalc.allocator.blocks import Block
from memcalc.allocator.caching import CachingAllocator, DeviceOutOfMemoryError
from memcalc.allocator.constants import SMALL_REQUEST
from memcalc.allocator.counter import Levels
from memcalc.allocator.device import DeviceMemory
from memcalc.allocator.replay import Failure, Interval, Player, Replay
from memcalc.allocator.settings import AllocatorSettings, round_size
from memcalc.estimation.decoding import native
from memcalc.estimation.decoding.small import small_segments
from memcalc.estimation.decoding.walk import CALLED, RISE, Names, Sizes, plan_of, unchanged
from memcalc.kernels.target import Target
from memcalc.records.decoding import BORN, DIES, EMPTIES, Curve, Role, aged
from memcalc.records.trace import Phase, Trace

Held = Block | tuple[int, int]
"""A large block, or a small one's bytes: requested and rounded."""


class Decode:
    """A decode to be replayed on devices of several sizes."""

    def __init__(
        self,
        curve: Curve,
        prefix: list[tuple[Any, ...]],
        settings: AllocatorSettings,
        target: Target,
    ) -> None:
        """Replay nothing yet but its small blocks.

        Args:
            curve: the passes that its trace leaves out.
            prefix: the trace's events before them.
            settings: of the allocator.
            target: the GPU whose kernels run.
        """
        self._curve = curve
        self._prefix = prefix
        self._settings = settings
        self._target = target
        self._small = small_segments(curve, prefix, settings, target)

    def replayed(self, capacity: int, available: int) -> Replay:
        """Run it through the allocator.

        Args:
            capacity: bytes of the device.
            available: of them, what the allocator can get.
        """
        settings, small = self._settings, self._small
        device = DeviceMemory(capacity, available=max(available - small, 0))
        player = Player(CachingAllocator(settings, device))
        failure = player.play(self._prefix)
        player.close_interval()
        if failure is not None:
            return player.result(settings, failure)
        left = _left(self._curve, player)
        library = native.loaded(player.allocator)
        if library is not None:
            return _compiled(self._curve, player, left, self._target, small, library)
        failure = _Passes(self._curve, player, left, self._target, small).run()
        return player.result(settings, failure)


def _left(curve: Curve, player: Player) -> dict[Role, Held]:
    """What the pass before the first has left."""
    left: dict[Role, Held] = {}
    for role, storage in curve.before:
        block = player.live.get(storage)
        if block is not None:
            small = block.pool.is_small
            left[role] = (block.requested, block.size) if small else block
    return left


_AT_ONCE = 4096
"""Passes of which compiled code is told in one call what kernels take."""


def _compiled(
    curve: Curve,
    player: Player,
    left: dict[Role, Held],
    target: Target,
    small: int,
    library: ctypes.CDLL,
) -> Replay:
    settings = player.allocator.settings
    passes = native.Passes(library, player.allocator, left, curve.lasting)
    failure, step, names = None, curve.first, Names()
    try:
        for piece in curve.passes():
            sizes = Sizes(piece, target, names)
            while step <= piece.last and failure is None:
                words, more = sizes.rows(step, min(unchanged(piece, step), step + _AT_ONCE - 1))
                played = passes.play(sizes, plan_of(sizes, step, settings), step, words, more)
                step += played
                if played < more:
                    why = passes.failed()
                    failure = Failure(event=0, key=None, interval=(step, Phase.DECODE), why=why)
    finally:
        passes.close()
    requested, allocated, reserved = passes.peaks
    _add(player, curve, passes.levels(), (requested, allocated, reserved + small))
    return replace(
        player.result(settings, failure),
        end=passes.levels(),
        at_reserved_peak=passes.at_reserved_peak(),
        retries=player.allocator.retries + passes.retries,
    )


def _add(player: Player, curve: Curve, end: Levels, peaks: Sequence[int]) -> None:
    """Add what the passes took as an interval of the replay."""
    requested, allocated, reserved = peaks
    highest = Levels(requested=requested, allocated=allocated, active=allocated, reserved=reserved)
    name = curve.first, Phase.DECODE
    player.add(Interval(name=name, begin=end, peaks=highest, end=end))


class _Passes:
    """The passes that a trace leaves out, through an allocator that has played those before."""

    def __init__(
        self,
        curve: Curve,
        player: Player,
        left: dict[Role, Held],
        target: Target,
        small_segments: int,
    ) -> None:
        self._curve = curve
        self._player = player
        self._allocator = player.allocator
        self._settings = player.allocator.settings
        self._target = target
        self._more_segments = small_segments
        stats = self._allocator.stats
        self._requested = stats.small.requested
        self._rounded = stats.small.bytes
        self._left = left
        self._lasting = curve.lasting
        self._peaks = [0, 0]

    def run(self) -> Failure | None:
        """Play all of them, or up to the one that finds no room."""
        step, names = self._curve.first, Names()
        try:
            for piece in self._curve.passes():
                sizes = Sizes(piece, self._target, names)
                plan: list[tuple[Any, ...]] = []
                until, last = -1, None
                while step <= piece.last:
                    if step > until:
                        until = sizes.alike(step, unchanged(piece, step))
                        plan, last = plan_of(sizes, step, self._settings), None
                    signature, room = self._play(sizes, plan, step)
                    jump = 0
                    if signature == last and room > 1:
                        most = min(room, until - step)
                        jump = max(sizes.steady(step, most) - 1, 0)
                    if jump:
                        self._grow(sizes, jump)
                    last = signature
                    step += 1 + jump
        except DeviceOutOfMemoryError as error:
            self._close()
            return Failure(event=0, key=None, interval=(step, Phase.DECODE), why=error.why)
        self._close()
        return None

    def _close(self) -> None:
        reserved = self._allocator.stats.device.reserved.peak + self._more_segments
        end = self._allocator.levels()
        _add(self._player, self._curve, end, (*self._peaks, reserved))

    def _note(self, requested: int, rounded: int) -> None:
        large, peaks = self._allocator.stats.large, self._peaks
        if (requested := self._requested + requested + large.requested) > peaks[0]:
            peaks[0] = requested
        if (rounded := self._rounded + rounded + large.bytes) > peaks[1]:
            peaks[1] = rounded

    def _play(self, sizes: Sizes, plan: list[tuple[Any, ...]], step: int) -> tuple[list[Any], int]:
        """Play one pass; returns which large blocks served it, and how long they do."""
        piece, allocator = sizes.piece, self._allocator
        made: dict[Any, Held] = {}
        signature: list[Any] = []
        room = least = 1 << 40
        most = 0
        taken = allocator.device_allocs, allocator.device_frees
        for what, key, more, size in plan:
            if what == RISE:
                self._note(key, more)
                continue
            if what in (BORN, CALLED):
                bytes_ = size + more * (step - piece.at) if what == BORN else size
                bytes_ = sizes.word(more, key[1], step) if what == CALLED else bytes_
                held = made[key] = self._born(bytes_, sizes.stream(key))
                if isinstance(held, Block):
                    source, rest = _source(held)
                    signature.append((source, bool(rest)) if source else (held.address, held.size))
                    least, most = min(least, held.size), max(most, rest)
                    if what == BORN and more:
                        # It is cut from the same segment, or fills it, until less is left over.
                        spare = rest - SMALL_REQUEST - 512 if rest else held.size - bytes_
                        room = min(room, max(spare, 0) // more if source else 0)
            elif what == DIES:
                self._end(made.pop(key))
            elif what == EMPTIES:
                allocator.empty_cache()
            else:
                self._end(self._left.pop(piece.left[key], None))
        self._left = _lasting(self._left, self._lasting)
        self._left.update((sizes.roles[n], h) for n, h in made.items() if isinstance(n, int))
        if taken != (allocator.device_allocs, allocator.device_frees) or least <= most:
            # Segments come or go; or what is left over of one, and shrinks, may serve a request.
            room = 0
        return signature, room

    def _born(self, size: int, stream: int) -> Held:
        if size > SMALL_REQUEST:
            return self._allocator.allocate(size, stream)
        rounded = round_size(size, self._settings.divisions)
        self._requested += size
        self._rounded += rounded
        return size, rounded

    def _end(self, held: Held | None) -> None:
        if isinstance(held, Block):
            self._allocator.free(held)
        elif held is not None:
            self._requested -= held[0]
            self._rounded -= held[1]

    def _grow(self, sizes: Sizes, passes: int) -> None:
        """What the last pass left grows by so many passes, in segments like those it is in."""
        growth = dict(zip(sizes.roles, sizes.piece.growth, strict=True))
        for role, held in list(self._left.items()):
            more = growth.get(role, 0) * passes
            if not more:
                continue
            if isinstance(held, Block):
                requested, stream = held.requested, held.stream
            else:
                requested, stream = held[0], 0
            self._end(held)
            self._left[role] = self._born(requested + more, stream)


def _lasting(left: dict[Role, Held], lasting: frozenset[Role]) -> dict[Role, Held]:
    """What of that a later pass frees, by the names it has from now on."""
    return {aged(role): held for role, held in left.items() if aged(role) in lasting}


def _source(block: Block) -> tuple[int, int]:
    """The segment that a block is in alone, and what is left over behind it; 0: it is not alone."""
    rest = block.next
    if block.prev is not None or (rest is not None and (rest.busy or rest.next is not None)):
        return 0, 0
    return (block.size, 0) if rest is None else (block.size + rest.size, rest.size)


def as_prefix(trace: Trace) -> Trace:
    """A trace up to the passes that its curve continues with."""
    assert trace.curve is not None
    end = len(trace.events) - trace.curve.shown
    marks = tuple(mark for mark in trace.marks if mark.index < end)
    asides = tuple(aside for aside in trace.asides if aside.index < end)
    return replace(trace, events=trace.events[:end], marks=marks, asides=asides)
