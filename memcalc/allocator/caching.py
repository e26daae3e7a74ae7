"""The caching allocator: how it serves a request, and what it does when memory is short.

Source: ``DeviceCachingAllocator`` in ``c10/cuda/CUDACachingAllocator.cpp`` (``malloc``,
``get_free_block``, ``alloc_block``, ``should_split``, ``free``) of torch 2.11 to 2.13, native
backend. A private pool (CUDA graphs, ``MemPool``) is a stream of its own here: no block passes from
one to the other, and its segments are kept as long as the pool is (``release_cached_blocks``).
"""

from bisect import bisect_left

import msgspec

from memcalc.allocator import expandable
from memcalc.allocator.settings import (
    MIN_BLOCK,
    MIN_OWN_SEGMENT,
    SEGMENT_ROUNDING,
    SMALL_REQUEST,
    SMALL_SEGMENT,
    UNLIMITED,
    AllocatorSettings,
    round_size,
)
from memcalc.allocator.state import AllocatorState, Block, DeviceMemory, Pool


class FailedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request could not be served. All in bytes."""

    requested: int
    """What the program asked for."""
    asked: int
    """What was asked of the device: "Tried to allocate" in PyTorch's message."""
    device_free: int
    allowed: int | None
    """The limit set by ``per_process_memory_fraction``."""
    allocated: int
    reserved: int


class DeviceOutOfMemoryError(Exception):
    """The model of ``torch.OutOfMemoryError``; the allocator stays usable, as the real one does."""

    def __init__(self, why: FailedRequest) -> None:
        super().__init__(f"{why.asked} bytes asked of the device, {why.device_free} free")
        self.why = why


class CachingAllocator(AllocatorState):
    """The caching allocator of one device.

    With ``streams_lag`` a freed block that other streams used waits for ``complete``. By default
    it waits for the next request only: the other streams are taken to be done by then.
    """

    def __init__(
        self, settings: AllocatorSettings, device: DeviceMemory, *, streams_lag: bool = False
    ) -> None:
        super().__init__(settings, device)
        self._streams_lag = streams_lag
        self._plain = not any(steps > 1 for steps in settings.divisions)

    def allocate(self, size: int, stream: int = 0) -> Block:
        """Serve a request of ``size`` > 0 bytes.

        Raises:
            DeviceOutOfMemoryError: neither the cache nor the device has room.
        """
        if self.waiting and not self._streams_lag:
            self.complete_all()
        settings = self.settings
        rounded = (size + 511) & -512 if self._plain else round_size(size, settings.divisions)
        pool = self.small if rounded <= SMALL_REQUEST else self.large
        block = self._find(pool, rounded, stream)
        if block is None:
            block = self._take_more(pool, size, rounded, stream)
        rest = block.size - rounded
        if rest >= MIN_BLOCK and (
            pool.is_small
            or settings.expandable
            or (rest > SMALL_REQUEST and rounded < settings.max_split)
        ):
            block = self.split(pool, block, rounded)
        block.busy = True
        block.requested = size
        self.stats.add(block.size, size)
        return block

    def free(self, block: Block) -> None:
        """Take a block back; one that other streams used stays active until they have passed."""
        if block.used_by:
            self.stats.wait(block.size)
            block.waiting = len(block.used_by)
            for stream in block.used_by:
                self.waiting.setdefault(stream, []).append(block)
            block.used_by = ()
        else:
            self.stats.drop(block.size, block.requested)
            self.put_back(block)

    def record_stream(self, block: Block, stream: int) -> None:
        """Note that another stream uses the block (``Tensor.record_stream``)."""
        if stream != block.stream and stream not in block.used_by:
            block.used_by += (stream,)

    def empty_cache(self) -> None:
        """Give every unused segment back to the device (``torch.cuda.empty_cache``)."""
        release_cached(self)

    def keep_pool(self, stream: int) -> None:
        """A stream within a private pool: its segments are kept as long as the pool is."""
        self.private.add(stream)

    def _find(self, pool: Pool, rounded: int, stream: int) -> Block | None:
        """The smallest free block that fits; the lowest address among equals."""
        if self.collects:
            pool.searches += 1
        free = pool.free.get(stream)
        if free is None:
            return None
        keys = free.keys
        at = bisect_left(keys, rounded << 64)
        if at == len(keys):
            return None
        if self.settings.expandable:
            at = expandable.best_fit(free.blocks, at)
        block = free.blocks[at]
        if self.limited:
            limit = self.settings.max_split
            if rounded >= limit:
                limit = rounded + self.settings.max_non_split_rounding
            if block.size >= limit:
                return None
        del keys[at]
        del free.blocks[at]
        return block

    def _take_more(self, pool: Pool, size: int, rounded: int, stream: int) -> Block:
        """Get memory from the device, giving cached memory back to it where needed."""
        if self.collects:
            collect_garbage(self)
        block = self._new_block(pool, rounded, stream)
        if block is None and release_oversize(self, pool, rounded, stream):
            block = self._new_block(pool, rounded, stream)
        if block is None:
            release_cached(self)
            self.retries += 1
            block = self._new_block(pool, rounded, stream)
        if block is not None:
            return block
        self.trace.append(("oom", self.device.free, rounded, stream))
        held = self.levels()
        raise DeviceOutOfMemoryError(
            FailedRequest(
                requested=size,
                asked=self.segment_size(rounded),
                device_free=self.device.free,
                allowed=self.allowed,
                allocated=held.allocated,
                reserved=held.reserved,
            )
        )

    def segment_size(self, rounded: int) -> int:
        """Bytes of the segment that is taken for a block of this size."""
        if rounded <= SMALL_REQUEST:
            return SMALL_SEGMENT
        if rounded < MIN_OWN_SEGMENT:
            return self.settings.large_segment
        return (rounded + SEGMENT_ROUNDING - 1) & -SEGMENT_ROUNDING

    def _new_block(self, pool: Pool, rounded: int, stream: int) -> Block | None:
        size = self.segment_size(rounded)
        if self.allowed is not None and self.stats.reserved + size > self.allowed:
            return None
        if self.settings.expandable:
            return expandable.allocate(self, pool, rounded, stream)
        address = self.device.malloc(size)
        if address is None:
            return None
        block = self.heads[address] = Block(pool, stream, address, size)
        self.stats.change_reserved(size)
        self.trace.append(("segment_alloc", address, size, stream))
        return block


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
