"""Replays a long decode: every pass whose blocks differ, of thousands that are like another.

Small blocks are exactly as large as their rounded request, so their bytes are summed; only the
segments they lie in need a replay, which is made of passes spread over the decode. Large blocks are
replayed pass by pass, but for stretches in which each request is known to be served by the same
blocks again: a request that grows stays in its block until that is full.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from memcalc.allocator.blocks import Block
from memcalc.allocator.caching import CachingAllocator, DeviceOutOfMemoryError
from memcalc.allocator.constants import SMALL_REQUEST
from memcalc.allocator.counter import Levels
from memcalc.allocator.device import DeviceMemory
from memcalc.allocator.replay import Failure, Interval, Player, Replay
from memcalc.allocator.settings import AllocatorSettings, round_size
from memcalc.kernels.formulas import KernelCall, scratch
from memcalc.kernels.target import Target
from memcalc.records.decoding import BORN, DIES, Curve, Piece, Role
from memcalc.records.trace import Phase, Trace
from memcalc.symbolic.records import SYMBOLIC, Kind, entry

_MOST_SMALL = 400_000
"""Events of passes that small blocks are replayed in: all passes, or pairs that are spread."""
_FIRST = 8
Held = Block | tuple[int, int]
"""A large block, or a small one's bytes: requested and rounded."""


def replayed(
    trace: Trace,
    prefix: Iterator[tuple[Any, ...]],
    settings: AllocatorSettings,
    target: Target,
    capacity: int,
    available: int | None = None,
) -> Replay:
    """Run a decode through the allocator.

    Args:
        trace: with a curve.
        prefix: the trace's events before the passes that it leaves out.
        settings: of the allocator.
        target: the GPU whose kernels run.
        capacity: bytes of the device.
        available: of them, what the allocator can get; ``None``: all.
    """
    assert trace.curve is not None
    events = list(prefix)
    small = _small_segments(trace.curve, events, settings, target)
    room = None if available is None else max(available - small, 0)
    device = DeviceMemory(capacity, available=room)
    player = Player(CachingAllocator(settings, device))
    failure = player.play(events)
    player.close_interval()
    if failure is None:
        failure = _Passes(trace.curve, player, settings, target, small).run()
    return player.result(settings, failure)


class _Sizes:
    """What is asked for in each pass of a piece."""

    def __init__(self, piece: Piece, target: Target) -> None:
        self.piece = piece
        self.roles = piece.roles
        self._target = target
        self._taken: dict[tuple[int, int], tuple[tuple[int, ...], tuple[int, ...]]] = {}
        self.varying = tuple(n for n, call in enumerate(piece.calls) if _grows(call.growth))

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

        def pattern(at: int) -> list[Any]:
            both = (self.taken(number, at) for number in self.varying)
            return [tuple(min(word, 1) for word in (*before, *after)) for before, after in both]

        if not self.varying:
            return last
        now = pattern(step)
        return next((at - 1 for at in range(step + 1, last + 1) if pattern(at) != now), last)

    def steady(self, step: int, most: int) -> int:
        """For how many passes on kernels take what they take in this one."""
        for more in range(1, most + 1 if self.varying else 1):
            if any(self.taken(n, step) != self.taken(n, step + more) for n in self.varying):
                return more - 1
        return most


def _grows(growth: Any) -> bool:
    return any(map(_grows, growth)) if isinstance(growth, list | tuple) else bool(growth)


class _Walk:
    """Walks over one pass: births and deaths with their sizes, kernels written out."""

    def __init__(self, sizes: _Sizes) -> None:
        self._sizes = sizes
        self._taken: list[Any] = []
        self._held: dict[int, list[Any]] = {}

    def events(self, step: int) -> Iterator[tuple[int, Any, int]]:
        """(what, key, bytes) of each: a storage's number, or a pair for a kernel's scratch."""
        piece = self._sizes.piece
        for item in piece.items:
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


class _Passes:
    """The passes that a trace leaves out, through an allocator that has played those before."""

    def __init__(
        self,
        curve: Curve,
        player: Player,
        settings: AllocatorSettings,
        target: Target,
        small_segments: int,
    ) -> None:
        self._curve = curve
        self._player = player
        self._allocator = player.allocator
        self._settings = settings
        self._target = target
        self._more_segments = small_segments
        stats = self._allocator.stats
        self._requested = stats.small.requested
        self._rounded = stats.small.bytes
        self._left: dict[Role, Held] = {}
        self._peaks = [0, 0, 0]
        names = curve.pieces[0].roles
        for number, storage in enumerate(curve.before):
            block = player.live.get(storage)
            if block is not None:
                small = block.pool.is_small
                self._left[names[number]] = (block.requested, block.size) if small else block

    def run(self) -> Failure | None:
        """Play all of them, or up to the one that finds no room."""
        step = self._curve.first
        try:
            for piece in self._curve.pieces:
                sizes = _Sizes(piece, self._target)
                plan: list[tuple[Any, ...]] = []
                until, last = -1, None
                while step <= piece.last:
                    if step > until:
                        until = sizes.alike(step, _unchanged(piece, step))
                        plan, last = _plan(sizes, step, self._settings), None
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
        """Add what the passes took as an interval of the replay."""
        end = self._allocator.levels()
        peaks = Levels(
            requested=self._peaks[0],
            allocated=self._peaks[1],
            active=self._peaks[1],
            reserved=self._peaks[2],
        )
        self._player.add(
            Interval(name=(self._curve.first, Phase.DECODE), begin=end, peaks=peaks, end=end)
        )

    def _note(self, requested: int, rounded: int) -> None:
        large, peaks = self._allocator.stats.large, self._peaks
        if (requested := self._requested + requested + large.requested) > peaks[0]:
            peaks[0] = requested
        if (rounded := self._rounded + rounded + large.bytes) > peaks[1]:
            peaks[1] = rounded

    def _play(self, sizes: _Sizes, plan: list[tuple[Any, ...]], step: int) -> tuple[list[Any], int]:
        """Play one pass; returns which large blocks served it, and how long they do."""
        piece, allocator = sizes.piece, self._allocator
        made: dict[Any, Held] = {}
        signature: list[Any] = []
        room = least = 1 << 40
        most = 0
        taken = allocator.device_allocs, allocator.device_frees
        for what, key, more, size in plan:
            if what == _RISE:
                self._note(key, more)
                continue
            if what in (BORN, _CALLED):
                bytes_ = size + more * (step - piece.at) if what == BORN else size
                bytes_ = sizes.word(more, key[1], step) if what == _CALLED else bytes_
                held = made[key] = self._born(bytes_)
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
            else:
                self._end(self._left.pop(piece.left[key], None))
        self._left = {sizes.roles[n]: held for n, held in made.items() if isinstance(n, int)}
        reserved = allocator.stats.device.reserved.peak + self._more_segments
        self._peaks[2] = max(self._peaks[2], reserved)
        if taken != (allocator.device_allocs, allocator.device_frees) or least <= most:
            # Segments come or go; or what is left over of one, and shrinks, may serve a request.
            room = 0
        return signature, room

    def _born(self, size: int) -> Held:
        if size > SMALL_REQUEST:
            return self._allocator.allocate(size)
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

    def _grow(self, sizes: _Sizes, passes: int) -> None:
        """What the last pass left grows by so many passes, in segments like those it is in."""
        growth = dict(zip(sizes.roles, sizes.piece.growth, strict=True))
        for role, held in list(self._left.items()):
            more = growth.get(role, 0) * passes
            if not more:
                continue
            requested = held.requested if isinstance(held, Block) else held[0]
            self._end(held)
            self._left[role] = self._born(requested + more)


def _source(block: Block) -> tuple[int, int]:
    """The segment that a block is in alone, and what is left over behind it; 0: it is not alone."""
    rest = block.next
    if block.prev is not None or (rest is not None and (rest.busy or rest.next is not None)):
        return 0, 0
    return (block.size, 0) if rest is None else (block.size + rest.size, rest.size)


_RISE, _CALLED = 8, 9
"""For a moment, small blocks hold so much more; a kernel takes what depends on the pass."""


def _unchanged(piece: Piece, step: int) -> int:
    """Up to which pass each storage is small, or large, as it is in this one."""
    until = piece.last
    for storage, growth in zip(piece.storages, piece.growth, strict=True):
        if growth and storage.bytes < SYMBOLIC:
            size = storage.bytes + growth * (step - piece.at)
            if size <= SMALL_REQUEST:
                until = min(until, step + (SMALL_REQUEST - size) // growth)
    return until


def _plan(sizes: _Sizes, step: int, settings: AllocatorSettings) -> list[tuple[Any, ...]]:
    """A pass with its small blocks of constant size, that come and go, in sums."""
    piece = sizes.piece
    ends = {item // 3 for item in piece.items if item % 3 == DIES}
    folded: dict[Any, tuple[int, int]] = {}
    plan: list[tuple[Any, ...]] = []
    now = top = start_of = [0, 0]
    rises = True
    for what, key, size in _Walk(sizes).events(step):
        scratch_of = not isinstance(key, int)
        growth = piece.growth[key] if what == BORN and not scratch_of else 0
        call = entry(piece.storages[key[0]].bytes)[1] if scratch_of else -1
        if call in sizes.varying:
            growth = 1
        passing = scratch_of or key in ends
        if what == BORN and size <= SMALL_REQUEST and not growth and passing:
            folded[key] = size, round_size(size, settings.divisions)
            now = [now[0] + folded[key][0], now[1] + folded[key][1]]
            top = [max(top[0], now[0]), max(top[1], now[1])]
        elif what == DIES and key in folded:
            size, rounded = folded.pop(key)
            now = [now[0] - size, now[1] - rounded]
        else:
            if rises or top != start_of:
                plan.append((_RISE, *top, 0))
            if what == BORN and call in sizes.varying:
                plan.append((_CALLED, key, call, 0))
            else:
                start = size - growth * (step - piece.at) if what == BORN else 0
                plan.append((what, key, growth, start))
            # After a birth there is more, whatever is summed; after a death, only where that grew.
            rises, top, start_of = what == BORN, now, now
    plan.append((_RISE, *top, 0))
    return plan


def _small_segments(
    curve: Curve, prefix: list[tuple[Any, ...]], settings: AllocatorSettings, target: Target
) -> int:
    """Bytes of segments for small blocks that the passes take beside those there are."""
    player = Player(CachingAllocator(settings, DeviceMemory(1 << 50)))
    if player.play(prefix) is not None:
        return 0
    allocator = player.allocator
    before = allocator.stats.small.reserved.current
    names = curve.pieces[0].roles
    left = {
        names[number]: player.live[storage]
        for number, storage in enumerate(curve.before)
        if storage in player.live and player.live[storage].pool.is_small
    }
    for piece, step in _spread(curve):
        made: dict[Any, Block] = {}
        for what, key, size in _Walk(_Sizes(piece, target)).events(step):
            if what == BORN and size <= SMALL_REQUEST:
                made[key] = allocator.allocate(size)
            elif what == DIES and key in made:
                allocator.free(made.pop(key))
            elif what not in (BORN, DIES) and piece.left[key] in left:
                allocator.free(left.pop(piece.left[key]))
        for block in left.values():
            allocator.free(block)
        roles = piece.roles
        left = {roles[n]: block for n, block in made.items() if isinstance(n, int)}
    return allocator.stats.small.reserved.current - before


def _spread(curve: Curve) -> Iterator[tuple[Piece, int]]:
    """As many passes as are affordable: the first, the last, and pairs between."""
    count = curve.last - curve.first + 1
    pairs = max(_MOST_SMALL // (2 * max(len(piece.items) for piece in curve.pieces)), 1)
    wanted = {*range(curve.first, curve.first + _FIRST), curve.last - 1, curve.last}
    if count <= 2 * pairs:
        wanted = set(range(curve.first, curve.last + 1))
    for number in range(pairs):
        at = curve.first + count * number // pairs
        wanted |= {at, at + 1}
    for piece in curve.pieces:
        for step in sorted(wanted):
            if piece.first <= step <= piece.last:
                yield piece, step


def as_prefix(trace: Trace) -> Trace:
    """A trace up to the passes that its curve continues with."""
    assert trace.curve is not None
    end = len(trace.events) - trace.curve.shown
    marks = tuple(mark for mark in trace.marks if mark.index < end)
    return replace(trace, events=trace.events[:end], marks=marks)
