"""The allocator's state: pools, segments, statistics, and how blocks are cut and joined.

Source: ``alloc_found_block``, ``free_block``, ``try_merge_blocks`` and ``process_events`` in
``c10/cuda/CUDACachingAllocator.cpp``.
"""

from __future__ import annotations

from memcalc.allocator.blocks import Block, Pool
from memcalc.allocator.constants import UNLIMITED
from memcalc.allocator.device import DeviceMemory
from memcalc.allocator.levels import Levels, Tally
from memcalc.allocator.settings import AllocatorSettings

TraceEntry = tuple[str, int, int, int]
"""Action as ``torch.cuda.memory._snapshot`` names it, address, bytes, stream."""


class AllocatorState:
    """State of the caching allocator of one device, and the steps that keep it whole."""

    def __init__(self, settings: AllocatorSettings, device: DeviceMemory) -> None:
        self.settings = settings
        self.device = device
        self.stats = Tally()
        self.small = Pool(is_small=True)
        self.large = Pool(is_small=False)
        self.heads: dict[int, Block] = {}
        """First block of every segment, by address."""
        self.waiting: dict[int, list[Block]] = {}
        """Freed blocks that wait for a stream, by that stream."""
        self.private: set[int] = set()
        """Streams that stand for one within a private pool."""
        self.trace: list[TraceEntry] = []
        """What happened to segments, frees that were completed late, and failures."""
        self.retries = 0
        self.allowed = settings.allowed(device.total)
        """Bytes that may be reserved at most; garbage is collected only where this is set."""
        self.collects = self.allowed is not None and settings.gc_threshold > 0.0
        self.limited = settings.max_split != UNLIMITED

    def levels(self) -> Levels:
        """What is held now."""
        return self.stats.levels()

    def complete(self, block: Block) -> None:
        """All streams have passed the point where this block was freed; it may be free already."""
        if not block.waiting:
            return
        for stream, blocks in list(self.waiting.items()):
            if block in blocks:
                blocks.remove(block)
            if not blocks:
                del self.waiting[stream]
        self._complete(block)

    def complete_all(self) -> None:
        """All streams have caught up, the default one first: PyTorch's own order has no rule."""
        waiting, self.waiting = self.waiting, {}
        for stream in sorted(waiting):
            for block in waiting[stream]:
                block.waiting -= 1
                if not block.waiting:
                    self._complete(block)

    def merge(self, block: Block, neighbour: Block | None) -> None:
        """Let a block swallow a neighbor that is free and mapped alike."""
        if neighbour is None or neighbour.busy or neighbour.mapped is not block.mapped:
            return
        block.pool.remove(neighbour)
        if neighbour is block.prev:
            block.address = neighbour.address
            before = block.prev = neighbour.prev
            if before is None:
                self.heads[block.address] = block
            else:
                before.next = block
        else:
            after = block.next = neighbour.next
            if after is not None:
                after.prev = block
        block.size += neighbour.size

    def split(self, pool: Pool, rest: Block, rounded: int) -> Block:
        """Cut the front off a free block; the rest goes back to the pool."""
        block = Block(pool, rest.stream, rest.address, rounded)
        block.segment = rest.segment
        if rest.prev is None:
            self.heads[block.address] = block
        block.splice(rest.prev, rest)
        rest.address += rounded
        rest.size -= rounded
        pool.add(rest)
        return block

    def put_back(self, block: Block) -> None:
        """Merge a freed block with its free neighbors and put it in the pool."""
        block.busy = False
        self.merge(block, block.prev)
        self.merge(block, block.next)
        block.pool.add(block)

    def _complete(self, block: Block) -> None:
        block.waiting = 0
        self.trace.append(("free_completed", block.address, block.requested, block.stream))
        self.stats.done(block.size, block.requested)
        self.put_back(block)
