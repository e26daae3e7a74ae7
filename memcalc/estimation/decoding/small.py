"""Segments of small blocks over a long decode, from passes that are spread over it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from memcalc.allocator.blocks import Block
from memcalc.allocator.caching import CachingAllocator
from memcalc.allocator.constants import SMALL_REQUEST
from memcalc.allocator.device import DeviceMemory
from memcalc.allocator.replay import Player
from memcalc.allocator.settings import AllocatorSettings
from memcalc.estimation.decoding import native
from memcalc.estimation.decoding.walk import Op, Sizes, Walk, operations
from memcalc.kernels.target import Target
from memcalc.records.decoding import BORN, DIES, Curve, Piece, Role

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
    names = curve.pieces[0].roles
    left = {
        names[number]: player.live[storage]
        for number, storage in enumerate(curve.before)
        if storage in player.live and player.live[storage].pool.is_small
    }
    library = native.loaded(allocator)
    if library is None:
        return _in_python(curve, allocator, left, target)
    passes = native.Passes(library, allocator, left, small=True)
    try:
        for piece, steps in itertools.groupby(_spread(curve), key=lambda pair: pair[0]):
            _play(passes, Sizes(piece, target), [step for _, step in steps])
        return passes.reserved
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
    before = allocator.stats.small.reserved.current
    known = {id(piece): Sizes(piece, target) for piece in curve.pieces}
    for piece, step in _spread(curve):
        made: dict[Any, Block] = {}
        sizes = known[id(piece)]
        for what, key, size in Walk(sizes).events(step):
            if what == BORN and size <= SMALL_REQUEST:
                made[key] = allocator.allocate(size, sizes.stream(key))
            elif what == DIES and key in made:
                allocator.free(made.pop(key))
            elif what not in (BORN, DIES) and piece.left[key] in left:
                allocator.free(left.pop(piece.left[key]))
        for block in left.values():
            allocator.free(block)
        left = {sizes.roles[n]: block for n, block in made.items() if isinstance(n, int)}
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
