"""The allocator's state: its device, pools, segments, and how blocks are cut and joined.

Source: ``alloc_found_block``, ``free_block``, ``try_merge_blocks`` and ``process_events`` in
``c10/cuda/CUDACachingAllocator.cpp``.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator

from memcalc.allocator.levels import Levels, Tally
from memcalc.allocator.settings import DEVICE_PAGE, UNLIMITED, AllocatorSettings

FIRST_ADDRESS = 0x7F00_0000_0000
"""Where made-up addresses begin; they only grow, so that no two segments are ever alike."""


class DeviceMemory:
    """A device with so much memory.

    Which free block is taken among equals depends on the order of addresses, and that is the
    driver's secret: addresses grow here, unless the recorded ones of a real run are given.

    ``total`` (``cudaDeviceProp.totalGlobalMem``) is what fractions refer to, ``available`` what
    this process's allocator may take of it; ``None``: all.
    """

    __slots__ = ("_addresses", "available", "next_address", "total", "used")

    def __init__(self, total: int, *, available: int | None = None) -> None:
        self.total = total
        self.available = total if available is None else available
        self.used = 0
        self._addresses = deque[int]()
        self.next_address = FIRST_ADDRESS
        """Where the next segment lies that no address was expected for."""

    @property
    def free(self) -> int:
        """Bytes still to be had."""
        return self.available - self.used

    def malloc(self, size: int) -> int | None:
        """Take memory and its address, as ``cudaMalloc``; ``None``: there is not enough."""
        if not self.take(_whole_pages(size)):
            return None
        return self.reserve(size)

    def give_back(self, size: int) -> None:
        """Return what ``malloc`` took, as ``cudaFree``."""
        self.used -= _whole_pages(size)

    def take(self, size: int) -> bool:
        """Take memory without an address, as ``cuMemCreate``; say whether there was enough."""
        if self.used + size > self.available:
            return False
        self.used += size
        return True

    def release(self, size: int) -> None:
        """Return what ``take`` took."""
        self.used -= size

    def expect(self, addresses: Iterable[int]) -> None:
        """Let the next segments lie where those of a recorded run did; forget older wishes."""
        self._addresses = deque(addresses)

    def reserve(self, size: int) -> int:
        """Reserve a range of addresses without memory behind it, as ``cuMemAddressReserve``."""
        if self._addresses:
            return self._addresses.popleft()
        address = self.next_address
        self.next_address += _whole_pages(size)
        return address


def _whole_pages(size: int) -> int:
    return (size + DEVICE_PAGE - 1) & -DEVICE_PAGE


class ExpandableSegment:
    """A reserved range of addresses whose pages are mapped as they are needed."""

    __slots__ = ("address", "granule", "size")

    def __init__(self, address: int, size: int, granule: int) -> None:
        self.address = address
        self.size = size
        self.granule = granule


class Block:
    """A piece of a segment; neighbors in the same segment are linked by address."""

    __slots__ = (
        "address",
        "born",
        "busy",
        "mapped",
        "next",
        "pool",
        "prev",
        "requested",
        "segment",
        "size",
        "stream",
        "used_by",
        "waiting",
    )

    def __init__(self, pool: Pool, stream: int, address: int, size: int) -> None:
        self.pool = pool
        self.stream = stream
        self.address = address
        self.size = size
        self.requested = 0
        self.busy = False
        """Whether the program holds it, or a stream that lags behind may still use it."""
        self.mapped = True
        self.prev: Block | None = None
        self.next: Block | None = None
        self.segment: ExpandableSegment | None = None
        self.used_by: tuple[int, ...] = ()
        """Other streams that used it (``Tensor.record_stream``)."""
        self.waiting = 0
        """Streams that have still to pass the point where it was freed."""
        self.born = 0
        """The pool's count of searches when it was last put among the free blocks."""

    @property
    def is_split(self) -> bool:
        """Whether it is only a part of its segment."""
        return self.prev is not None or self.next is not None

    def splice(self, before: Block | None, after: Block | None) -> None:
        """Link it in between two neighbors."""
        self.prev = before
        self.next = after
        if before is not None:
            before.next = self
        if after is not None:
            after.prev = self


class FreeList:
    """Blocks of one stream in order of size, then address; two lists side by side for speed."""

    __slots__ = ("blocks", "keys")

    def __init__(self) -> None:
        self.keys: list[int] = []
        self.blocks: list[Block] = []

    def add(self, block: Block) -> None:
        """Put a block in its place."""
        key = block.size << 64 | block.address
        at = bisect_left(self.keys, key)
        self.keys.insert(at, key)
        self.blocks.insert(at, block)

    def remove(self, block: Block) -> None:
        """Take a block out; its size and address must be those it was added with."""
        at = bisect_left(self.keys, block.size << 64 | block.address)
        del self.keys[at]
        del self.blocks[at]


class Pool:
    """The small or the large pool: its free blocks and its holes, by stream."""

    __slots__ = ("free", "is_small", "searches", "unmapped")

    def __init__(self, *, is_small: bool) -> None:
        self.is_small = is_small
        self.free: dict[int, FreeList] = {}
        self.unmapped: dict[int, list[Block]] = {}
        """Address ranges of expandable segments with no memory behind them, by address."""
        self.searches = 0
        """Searches for a free block; counted only when garbage is collected."""

    def add(self, block: Block) -> None:
        """Put a block among the free ones."""
        block.born = self.searches
        free = self.free.get(block.stream)
        if free is None:
            free = self.free[block.stream] = FreeList()
        free.add(block)

    def remove(self, block: Block) -> None:
        """Take a free block, or a hole, out."""
        if block.mapped:
            self.free[block.stream].remove(block)
        else:
            self.unmapped[block.stream].remove(block)

    def add_hole(self, block: Block) -> None:
        """Put an unmapped range among the holes."""
        holes = self.unmapped.setdefault(block.stream, [])
        holes.insert(bisect_left([hole.address for hole in holes], block.address), block)

    def __iter__(self) -> Iterator[Block]:
        """All free blocks by stream, size and address; the pool may change meanwhile."""
        return iter([block for stream in sorted(self.free) for block in self.free[stream].blocks])


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
