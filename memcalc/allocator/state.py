"""The allocator's state: pools, segments, statistics, and how blocks are cut and joined.

Source: ``alloc_found_block``, ``free_block``, ``try_merge_blocks`` and ``process_events`` in
``c10/cuda/CUDACachingAllocator.cpp``.
"""

from __future__ import annotations

from memcalc.allocator.blocks import Block, Pool
from memcalc.allocator.constants import UNLIMITED
from memcalc.allocator.counter import Counter, Levels
from memcalc.allocator.device import DeviceMemory
from memcalc.allocator.settings import AllocatorSettings
from memcalc.allocator.stats import DeviceStats

TraceEntry = tuple[str, int, int, int]
"""Action as ``torch.cuda.memory._snapshot`` names it, address, bytes, stream."""


class AllocatorState:
    """State of the caching allocator of one device, and the steps that keep it whole.

    Args:
        settings: what ``PYTORCH_ALLOC_CONF`` says.
        device: where memory comes from.
    """

    def __init__(self, settings: AllocatorSettings, device: DeviceMemory) -> None:
        self.settings = settings
        self.device = device
        self.stats = DeviceStats()
        self.small = Pool(self.stats.small, is_small=True)
        self.large = Pool(self.stats.large, is_small=False)
        self.heads: dict[int, Block] = {}
        """First block of every segment, by address."""
        self.waiting: dict[int, list[Block]] = {}
        """Freed blocks that wait for a stream, by that stream."""
        self.private: dict[int, bool] = {}
        """Streams that stand for one within a private pool, and whether that pool is kept."""
        self.trace: list[TraceEntry] = []
        """What happened to segments, frees that were completed late, and failures."""
        self.retries = self.ooms = self.syncs = 0
        self.device_allocs = self.device_frees = 0
        self.oversize_blocks, self.oversize_segments = Counter(), Counter()
        self.at_reserved_peak = self.stats.levels()
        """All rungs at the first moment reserved was as high as ever."""
        self.allowed: int | None = None
        self.collects = False
        self.allow(settings.allowed(device.total))
        self.limited = settings.max_split != UNLIMITED
        self.grew = False
        """Whether memory was taken from the device since the reserved peak was last looked at."""

    def allow(self, most: int | None) -> None:
        """Reserve so many bytes at most (``torch.cuda.set_per_process_memory_fraction``).

        Garbage is collected only where there is such a limit.
        """
        self.allowed = most
        self.collects = most is not None and self.settings.gc_threshold > 0.0

    def levels(self) -> Levels:
        """What is held now."""
        return self.stats.levels()

    def reset_peaks(self) -> None:
        """Make every level its own peak (``torch.cuda.reset_peak_memory_stats``)."""
        self.stats.reset_peaks()
        self.oversize_blocks.reset_peak()
        self.oversize_segments.reset_peak()

    def memory_stats(self) -> dict[str, int]:
        """Every figure of ``torch.cuda.memory_stats`` this model knows, under its key."""
        return {
            **self.stats.named(),
            **self.oversize_blocks.named("oversize_allocations"),
            **self.oversize_segments.named("oversize_segments"),
            "num_alloc_retries": self.retries,
            "num_ooms": self.ooms,
            "num_sync_all_streams": self.syncs,
            "num_device_alloc": self.device_allocs,
            "num_device_free": self.device_frees,
        }

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
        """All streams have caught up.

        The real order of streams follows a hash table; the peak of ``inactive_split`` is all that
        depends on it. Default stream first is what was seen with one other stream.
        """
        waiting, self.waiting = self.waiting, {}
        for stream in sorted(waiting):
            for block in waiting[stream]:
                block.waiting -= 1
                if not block.waiting:
                    self._complete(block)

    def merge(self, block: Block, neighbour: Block | None) -> int:
        """Let a block swallow a neighbor that is free and mapped alike; return its size, or 0."""
        if neighbour is None or neighbour.busy or neighbour.mapped is not block.mapped:
            return 0
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
        return neighbour.size

    def split(self, pool: Pool, rest: Block, rounded: int) -> Block:
        """Cut the front off a free block; the rest goes back to the pool."""
        was_split = rest.prev is not None or rest.next is not None
        block = Block(pool, rest.stream, rest.address, rounded)
        block.segment = rest.segment
        before = block.prev = rest.prev
        if before is None:
            self.heads[block.address] = block
        else:
            before.next = block
        block.next = rest
        rest.prev = block
        rest.address += rounded
        rest.size -= rounded
        pool.add(rest)
        if block.segment is None:
            if was_split:
                pool.stats.change_split(0, -rounded)
            else:
                pool.stats.change_split(1, rest.size)
        return block

    def put_back(self, block: Block) -> None:
        """Merge a freed block with its free neighbors and put it in the pool."""
        pool = block.pool
        block.busy = False
        before, after = block.prev, block.next
        if before is None and after is None:
            pool.add(block)
            return
        count, size = 0, 0
        if before is not None and not before.busy and (swallowed := self.merge(block, before)):
            count, size = -1, -swallowed
        if after is not None and not after.busy and (swallowed := self.merge(block, after)):
            count, size = count - 1, size - swallowed
        pool.add(block)
        if block.segment is None:
            if block.prev is not None or block.next is not None:
                count, size = count + 1, size + block.size
            pool.stats.change_split(count, size)

    def change_reserved(self, pool: Pool, size: int, segments: int = 0) -> None:
        """Count memory taken from the device (``size`` > 0) or given back."""
        if size > 0:
            self.device_allocs += 1
            self.grew = True
        else:
            self.device_frees += 1
        pool.stats.change_reserved(size, segments)

    def note_reserved_peak(self) -> None:
        """Keep the levels of this moment if reserved is higher than ever before."""
        self.grew = False
        held = self.stats.levels()
        if held.reserved > self.at_reserved_peak.reserved:
            self.at_reserved_peak = held

    def _complete(self, block: Block) -> None:
        block.waiting = 0
        self.trace.append(("free_completed", block.address, block.requested, block.stream))
        block.pool.stats.done(block.size, block.requested)
        self.put_back(block)
