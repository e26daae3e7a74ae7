"""How cached memory is freed: on demand, when memory is short, and by age.

Source: ``release_cached_blocks``, ``release_available_cached_blocks``,
``garbage_collect_cached_blocks`` and ``release_block`` in ``c10/cuda/CUDACachingAllocator.cpp``.
"""

from __future__ import annotations

from bisect import bisect_left

from memcalc.allocator import expandable
from memcalc.allocator.blocks import Block, Pool
from memcalc.allocator.constants import UNLIMITED
from memcalc.allocator.state import AllocatorState


def release_cached(state: AllocatorState) -> None:
    """Wait for all streams, then give back every segment, and every page, that is free as a whole.

    Other streams' segments go too, not only those of the stream that is short of memory; those of
    private pools are kept.
    """
    state.complete_all()
    for pool in (state.large, state.small):
        free = [block for block in pool if block.stream not in state.private]
        for block in free:
            if block.segment is None and not block.is_split:
                release_segment(state, block)
        for block in free:
            if block.segment is not None:
                expandable.unmap(state, block)


def release_oversize(state: AllocatorState, pool: Pool, rounded: int, stream: int) -> bool:
    """Give back blocks too large to be split, just enough for the request.

    Returns:
        Whether as much as the request (or ``max_split``, if that is more) was given back.
    """
    limit = state.settings.max_split
    if limit == UNLIMITED:
        return False
    wanted = max(rounded, limit)
    free = pool.free.get(stream)
    at = bisect_left(free.keys, wanted << 64) if free is not None else 0
    if free is not None and at < len(free.blocks) and free.blocks[at].segment is None:
        release_segment(state, free.blocks[at])
        return True
    released = 0
    for block in free.blocks[:at][::-1] if free is not None else ():
        if released >= wanted or block.size < limit:
            break
        if block.segment is None:
            released += block.size
            release_segment(state, block)
    return released >= wanted


def collect_garbage(state: AllocatorState) -> None:
    """Give back large cached segments that were long not reused, once reserved is over threshold.

    A block's age is the number of searches of its pool since it was freed. Every block at least
    as old as the mean goes, even when fewer would do.
    """
    if state.allowed is None:
        return
    threshold = int(state.settings.gc_threshold * float(state.allowed))
    target = state.stats.reserved - threshold
    if target <= 0:
        return
    pool = state.large
    ages = {
        block: pool.searches - block.born
        for block in pool
        if not block.is_split and block.stream not in state.private
    }
    count, total, reclaimed, progress = len(ages), sum(ages.values()), 0, True
    while count and progress and reclaimed < target:
        mean, progress = total / count, False
        for block, age in list(ages.items()):
            if block.segment is None and age >= mean:
                progress = True
                reclaimed += block.size
                total -= age
                count -= 1
                del ages[block]
                release_segment(state, block)


def release_segment(state: AllocatorState, block: Block) -> None:
    """Give the segment that this free block fills back to the device."""
    block.pool.remove(block)
    del state.heads[block.address]
    state.device.give_back(block.size)
    state.stats.change_reserved(-block.size)
    state.trace.append(("segment_free", block.address, block.size, block.stream))
