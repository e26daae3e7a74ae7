"""Segments of small blocks over a long decode, from passes that are spread over it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from memcalc.allocator.blocks import Block
from memcalc.allocator.caching import CachingAllocator
from memcalc.allocator.constants import SMALL_REQUEST
from memcalc.allocator.device import DeviceMemory
from memcalc.allocator.replay import Player
from memcalc.allocator.settings import AllocatorSettings
from memcalc.estimation.decoding import native
from memcalc.estimation.decoding.walk import Names, Op, Sizes, Walk, operations
from memcalc.kernels.target import Target
from memcalc.records.decoding import BORN, DIES, EMPTIES, LEFT, Curve, Piece, Role, aged

_MOST_SMALL = 300_000
"""Events of passes that small blocks are replayed in: all passes, or pairs that are spread."""
_FIRST = 8


def small_segments(
    curve: Curve, prefix: list[tuple[Any, ...]], settings: AllocatorSettings, target: Target
) -> int:
    """Bytes of segments for small blocks that the passes take beside those there are."""
    player = Player(CachingAllocator(settings, DeviceMemory(1 << 50)))
    if player.play(prefix) is not None:
        return 0
    allocator = player.allocator
    left = {
        role: player.live[storage]
        for role, storage in curve.before
        if storage in player.live and player.live[storage].pool.is_small
    }
    library = native.loaded(allocator)
    if library is None:
        return _in_python(curve, allocator, left, target)
    passes = native.Passes(library, allocator, left, curve.lasting, small=True)
    try:
        names = Names()
        for piece, steps in _spread(curve):
            _play(passes, Sizes(piece, target, names), steps)
        return passes.most_reserved
    finally:
        passes.close()


def _play(passes: native.Passes, sizes: Sizes, steps: Sequence[int]) -> None:
    """Passes of a piece in compiled code, the first alone: some left of other pieces goes then."""
    plans: dict[Any, list[Op]] = {}
    at = 0
    while at < len(steps):
        step, end = steps[at], at + 1
        while at and end < len(steps) and steps[end] == steps[end - 1] + 1:
            end += 1
        words, more = sizes.rows(step, steps[end - 1])
        pattern = sizes.pattern(step)
        if pattern not in plans:
            plans[pattern] = [op for op, _ in operations(sizes, step)]
        passes.play(sizes, plans[pattern], step, words, more)
        if not at:
            passes.forget(sizes)
        at += more


def _in_python(
    curve: Curve, allocator: CachingAllocator, left: dict[Role, Block], target: Target
) -> int:
    reserved = allocator.stats.small.reserved
    allocator.stats.reset_peaks()
    before = reserved.current
    names = Names()
    for piece, steps in _spread(curve):
        sizes = Sizes(piece, target, names)
        for step in steps:
            left = _one(sizes, step, allocator, left, curve.lasting)
    return reserved.peak - before


def _one(
    sizes: Sizes,
    step: int,
    allocator: CachingAllocator,
    left: dict[Role, Block],
    lasting: frozenset[Role],
) -> dict[Role, Block]:
    """Play one pass; returns what it has left, and of what others have, what another one frees."""
    made: dict[Any, Block] = {}
    for what, key, size in Walk(sizes).events(step):
        if what == BORN and size <= SMALL_REQUEST:
            made[key] = allocator.allocate(size, sizes.stream(key))
        elif what == DIES and key in made:
            allocator.free(made.pop(key))
        elif what == EMPTIES:
            allocator.empty_cache()
        elif what == LEFT and sizes.piece.left[key] in left:
            allocator.free(left.pop(sizes.piece.left[key]))
    kept: dict[Role, Block] = {}
    for role, block in left.items():
        # Where passes between were left out, what none of these frees is gone as well.
        gone = kept.pop(aged(role), None) if aged(role) in lasting else block
        if gone is not None:
            allocator.free(gone)
        if gone is not block:
            kept[aged(role)] = block
    kept.update((sizes.roles[n], block) for n, block in made.items() if isinstance(n, int))
    return kept


def _spread(curve: Curve) -> Iterator[tuple[Piece, list[int]]]:
    """As many passes as are affordable: the first, the last, and pairs between."""
    count = curve.last - curve.first + 1
    pairs = max(_MOST_SMALL // (2 * max(len(piece.items) for piece in curve.kinds)), 1)
    wanted = {*range(curve.first, curve.first + _FIRST), curve.last - 1, curve.last}
    if count <= 2 * pairs:
        wanted = set(range(curve.first, curve.last + 1))
    for number in range(pairs):
        at = curve.first + count * number // pairs
        wanted |= {at, at + 1}
    for piece in _looked_at(curve):
        wanted |= {piece.first, piece.first + 1, piece.last - 1, piece.last}
    for piece in curve.passes():
        steps = [step for step in range(piece.first, piece.last + 1) if step in wanted]
        if steps:
            yield piece, steps


def _looked_at(curve: Curve) -> Iterator[Piece]:
    """Of a cycle, its first time round, one in the middle, and the last."""
    cycle = curve.cycle
    if cycle is not None:
        for time in {0, cycle.times // 2, cycle.times - 1}:
            yield from (cycle.piece(number, time) for number in range(len(cycle.pieces)))
