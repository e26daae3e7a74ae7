"""Segments and the blocks that tile them, as ``torch.cuda.memory_snapshot`` lists them.

Source: ``DeviceCachingAllocator::snapshot`` in ``c10/cuda/CUDACachingAllocator.cpp``.
"""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Annotated, Any

import msgspec

from memcalc.allocator.state import AllocatorState, Block

Size = Annotated[int, msgspec.Meta(ge=0, le=1 << 50)]
"""Bytes; a thousand times what the largest machines have."""
Number = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
"""An address, a stream or an index."""
DEFAULT_POOL = (0, 0)


class BlockState(StrEnum):
    """What a block is doing."""

    ALLOCATED = "active_allocated"
    PENDING = "active_pending_free"
    """Freed by the program; another stream may still use it."""
    INACTIVE = "inactive"


class BlockRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One block."""

    address: Number = 0
    size: Size
    requested_size: Size
    """What was asked for; in an inactive block, the last time it was in use."""
    state: str
    """A ``BlockState``."""
    frames: Any = ()
    """Where it was allocated, innermost first; looked at only where it is shown."""


class SegmentRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Memory without a gap, taken from the device; its blocks tile it in order of address."""

    device: Number
    address: Number
    total_size: Size
    allocated_size: Size = 0
    active_size: Size = 0
    requested_size: Size = 0
    stream: Number
    segment_type: str
    """``small`` or ``large``."""
    segment_pool_id: Any = DEFAULT_POOL
    is_expandable: bool = False
    frames: Any = ()
    blocks: list[BlockRecord]


def segments(
    state: AllocatorState, shown: Mapping[int, list[dict[str, Any]]] | None = None
) -> list[SegmentRecord]:
    """List all segments by address; an expandable one counts as many as it has mapped stretches."""
    stretches = [one for head in state.heads.values() for one in _mapped_stretches(head)]
    return [
        _segment(stretch, shown or {})
        for stretch in sorted(stretches, key=lambda stretch: stretch[0].address)
    ]


def _segment(stretch: list[Block], shown: Mapping[int, list[dict[str, Any]]]) -> SegmentRecord:
    busy = [block for block in stretch if block.busy]
    return SegmentRecord(
        device=0,
        address=stretch[0].address,
        total_size=sum(block.size for block in stretch),
        allocated_size=sum(block.size for block in busy if not block.waiting),
        active_size=sum(block.size for block in busy),
        requested_size=sum(block.requested for block in busy),
        stream=stretch[0].stream,
        segment_type="small" if stretch[0].pool.is_small else "large",
        is_expandable=stretch[0].segment is not None,
        frames=[],
        blocks=[
            BlockRecord(
                address=block.address,
                size=block.size,
                requested_size=block.requested,
                state=_state(block).value,
                frames=shown.get(block.address, []),
            )
            for block in stretch
        ],
    )


def _state(block: Block) -> BlockState:
    if not block.busy:
        return BlockState.INACTIVE
    return BlockState.PENDING if block.waiting else BlockState.ALLOCATED


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
