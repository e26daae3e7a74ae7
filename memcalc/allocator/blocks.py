"""Blocks and free lists ordered by size."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator


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
