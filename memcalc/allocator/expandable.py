"""Expandable segments: one range of addresses per pool and stream, mapped as it is needed.

Source: ``find_expandable_block``, ``try_allocate_expandable_block``, ``map_block``, ``unmap_block``
and ``ExpandableSegment`` in ``c10/cuda/CUDACachingAllocator.cpp``.
"""

from memcalc.allocator.settings import SMALL_SEGMENT
from memcalc.allocator.state import AllocatorState, Block, ExpandableSegment, Pool


def best_fit(free: list[Block], at: int) -> int:
    """Choose among free blocks in order of size, from the first that fits.

    A block before a hole counts as large as it could grow, so that the end of a segment is not
    cut up while a block in the middle would do.
    """
    while at + 1 < len(free) and _could_grow_to(free[at + 1]) < _could_grow_to(free[at]):
        at += 1
    return at


def allocate(state: AllocatorState, pool: Pool, rounded: int, stream: int) -> Block | None:
    """Map pages at the lowest address where the request fits; ``None``: the device is full."""
    block = _find_room(state, pool, rounded, stream)
    if not block.mapped and not _map(state, block, min(block.size, rounded)):
        return None
    while block.size < rounded:
        hole = block.next
        if hole is None or not _map(state, hole, min(rounded - block.size, hole.size)):
            return None
        block = hole  # it swallowed the free block before it
    pool.remove(block)
    return block


def unmap(state: AllocatorState, block: Block) -> None:
    """Give back the whole pages inside a free block; the rest of it stays free."""
    segment = block.segment
    if segment is None:
        return
    granule, offset = segment.granule, block.address - segment.address
    start = segment.address + -(-offset // granule) * granule
    size = (offset + block.size) // granule * granule - (start - segment.address)
    if size <= 0:
        return
    pool = block.pool
    pool.remove(block)
    before, after = start - block.address, block.address + block.size - (start + size)
    if before:
        rest = _piece(block, block.address, before)
        if block.prev is None:
            state.heads[rest.address] = rest
        rest.splice(block.prev, block)
        pool.add(rest)
    if after:
        rest = _piece(block, start + size, after)
        rest.splice(block, block.next)
        pool.add(rest)
    block.address, block.size, block.mapped = start, size, False
    state.merge(block, block.prev)
    state.merge(block, block.next)
    state.device.release(size)
    state.stats.change_reserved(-size)
    state.trace.append(("segment_unmap", start, size, block.stream))
    if block.is_split:
        pool.add_hole(block)
    else:
        del state.heads[block.address]


def _could_grow_to(block: Block) -> int:
    after = block.next
    return block.size if after is None or after.mapped else block.size + after.size


def _find_room(state: AllocatorState, pool: Pool, rounded: int, stream: int) -> Block:
    for hole in pool.unmapped.get(stream, ()):
        before = hole.prev
        first = hole if before is None or before.busy else before
        room = 0
        block: Block | None = first
        while block is not None and not block.busy and room < rounded:
            room, block = room + block.size, block.next
        if room >= rounded:
            return first
    granule = SMALL_SEGMENT if pool.is_small else state.settings.large_segment
    total = state.device.total
    size = -(-(total + total // 8) // granule) * granule
    address = state.device.reserve(size)
    whole = state.heads[address] = Block(pool, stream, address, size)
    whole.mapped = False
    whole.segment = ExpandableSegment(address, size, granule)
    pool.add_hole(whole)
    return whole


def _map(state: AllocatorState, hole: Block, size: int) -> bool:
    """Put memory behind the front of a hole, in whole granules; all of it or none."""
    segment = hole.segment
    if segment is None:
        return False
    mapped = -(-size // segment.granule) * segment.granule
    if not state.device.take(mapped):
        return False
    pool = hole.pool
    pool.remove(hole)
    hole.mapped = True
    if mapped < hole.size:
        rest = _piece(hole, hole.address + mapped, hole.size - mapped)
        rest.mapped = False
        rest.splice(hole, hole.next)
        hole.size = mapped
        pool.add_hole(rest)
    start = hole.address
    state.merge(hole, hole.prev)
    state.merge(hole, hole.next)
    pool.add(hole)
    state.stats.change_reserved(mapped)
    state.trace.append(("segment_map", start, mapped, hole.stream))
    return True


def _piece(block: Block, address: int, size: int) -> Block:
    piece = Block(block.pool, block.stream, address, size)
    piece.segment = block.segment
    return piece
