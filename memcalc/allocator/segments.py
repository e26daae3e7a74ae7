"""Segments and the blocks that tile them, as plain records."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum

import msgspec

from memcalc.allocator.blocks import Block
from memcalc.allocator.state import AllocatorState


class BlockState(StrEnum):
    """What a block is doing, in the words of ``torch.cuda.memory_snapshot``."""

    ALLOCATED = "active_allocated"
    PENDING = "active_pending_free"
    """Freed by the program; another stream may still use it."""
    INACTIVE = "inactive"


class BlockRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One block. Sizes in bytes."""

    address: int
    size: int
    requested: int
    """What was asked for; in an inactive block, the last time it was in use."""
    state: BlockState


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """Memory without a gap, taken from the device; its blocks tile it in order of address."""

    address: int
    stream: int
    is_small: bool
    is_expandable: bool
    blocks: tuple[BlockRecord, ...]

    @property
    def size(self) -> int:
        """Bytes of the whole segment."""
        return sum(block.size for block in self.blocks)

    def held(self, *states: BlockState) -> int:
        """Bytes of the blocks in one of these states."""
        return sum(block.size for block in self.blocks if block.state in states)


def segments(state: AllocatorState) -> tuple[Segment, ...]:
    """List all segments by address; an expandable one counts as many as it has mapped stretches.

    Source: ``DeviceCachingAllocator::snapshot`` in ``c10/cuda/CUDACachingAllocator.cpp``.
    """
    found = [
        Segment(
            address=stretch[0].address,
            stream=stretch[0].stream,
            is_small=stretch[0].pool.is_small,
            is_expandable=stretch[0].segment is not None,
            blocks=tuple(_record(block) for block in stretch),
        )
        for head in state.heads.values()
        for stretch in _mapped_stretches(head)
    ]
    return tuple(sorted(found, key=lambda segment: segment.address))


def _mapped_stretches(head: Block) -> Iterator[list[Block]]:
    stretch: list[Block] = []
    block: Block | None = head
    while block is not None:
        if block.mapped:
            stretch.append(block)
        elif stretch:
            yield stretch
            stretch = []
        block = block.next
    if stretch:
        yield stretch


def _record(block: Block) -> BlockRecord:
    if not block.busy:
        state = BlockState.INACTIVE
    else:
        state = BlockState.PENDING if block.waiting else BlockState.ALLOCATED
    return BlockRecord(
        address=block.address, size=block.size, requested=block.requested, state=state
    )
