"""The GPU that a script believes it has: its properties, and its memory as the allocator keeps it.

Every storage of the ledger goes through the allocator's model as it is born or dies: at once where
the GPU could be full, and otherwise when the script asks something of its memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from msgspec.structs import replace

from memcalc.allocator.caching import CachingAllocator, DeviceOutOfMemoryError, FailedRequest
from memcalc.allocator.constants import (
    LARGE_SEGMENT,
    SEGMENT_ROUNDING,
    SMALL_REQUEST,
    SMALL_SEGMENT,
)
from memcalc.allocator.device import DeviceMemory
from memcalc.allocator.replay import Op, to_pools
from memcalc.allocator.settings import AllocatorSettings
from memcalc.records.trace import Aside
from memcalc.script.pools import Pools
from memcalc.script.visible import Gpus
from memcalc.trace.ledger import Ledger
from memcalc.units import GIB, MIB

_SURELY_SMALL = SMALL_REQUEST // 2
"""Requests up to this are small ones however they are rounded."""


class GpuMemory(Ledger):
    """A ledger whose storages live in a model of PyTorch's allocator.

    Args:
        settings: of the allocator.
        total: bytes of the device.
        outside: bytes of it that the process holds outside the allocator.
        limit: bytes that the allocator may take; more ends in ``torch.OutOfMemoryError``.
    """

    def __init__(
        self, settings: AllocatorSettings, *, total: int, outside: int, limit: int
    ) -> None:
        super().__init__()
        self.total, self.outside = total, outside
        self.gpus = Gpus()
        self._limit = limit
        self.begins: Callable[[], None] | None = None
        """Called once, when something is first asked of the allocator."""
        self.use(settings)
        self._seen = 0
        """How many events the model has seen."""
        self._most = 0
        """Bytes that can be reserved at most after all events."""
        self._blocks: dict[int, Any] = {}
        self.pools = Pools(self._tell)
        self._refused: tuple[int, int, int, int] | None = None
        """The last storage without room; how many events, marks and asides there were then."""

    def use(self, settings: AllocatorSettings) -> None:
        """Be an allocator with these settings; it holds nothing yet."""
        # Rounding to divisions of powers of two doubles a size at most.
        self._rounding = max(settings.large_segment, LARGE_SEGMENT) + SEGMENT_ROUNDING
        self._model = CachingAllocator(settings, DeviceMemory(self.total, available=self._limit))

    def _begin(self) -> None:
        begins, self.begins = self.begins, None
        if begins is not None:
            begins()

    def log(self, event: int) -> None:
        """Write an event down; a birth that finds no room raises ``torch.OutOfMemoryError``."""
        if self.begins is not None:
            self._begin()
        if event >= 0:
            entry = self.entries[event]
            entry.stream, size = self.pools.stream_of(entry.stream), entry.bytes
            # A request takes one segment at most, whose size is rounded up.
            grows = SMALL_SEGMENT if size <= _SURELY_SMALL else 2 * size + self._rounding
            self._most += grows
            if self._most > self._room:
                self._most = self._allocator.levels().reserved + grows
                if self._most > self._room:
                    self._see(event)
                    self._seen += 1
                    self._most = self._model.levels().reserved
        super().log(event)

    @property
    def _allocator(self) -> CachingAllocator:
        """The model as it is after all events."""
        self._begin()
        self._catch_up()
        return self._model

    def _catch_up(self) -> None:
        for event in self.events[self._seen :]:
            self._see(event)
        self._seen = len(self.events)

    def _see(self, event: int) -> None:
        if event >= 0:
            self._blocks[event] = self._allocate(event)
        else:
            self._model.free(self._blocks.pop(~event))

    @property
    def _room(self) -> int:
        """Bytes up to which nothing is refused or given back; none where garbage is collected."""
        if self._model.collects:
            return -1
        allowed = self._model.allowed
        return self._limit if allowed is None else min(self._limit, allowed)

    def _allocate(self, number: int) -> Any:
        entry, given_back = self.entries[number], self._model.retries
        try:
            return self._model.allocate(entry.bytes, entry.stream)
        except DeviceOutOfMemoryError as error:
            self._refused = number, len(self.events), len(self.marks), len(self.asides)
            raise torch.OutOfMemoryError(_words(error.why, self.total, self.outside)) from None
        finally:
            if self._model.retries > given_back:
                # Where there was no room, the allocator has emptied its cache by itself.
                self.asides.append(Aside(index=len(self.events), what="empty_cache"))

    def count_refused(self) -> None:
        """Write down the request that found no room, when it did: this much was needed at least."""
        if self._refused is None:
            return
        number, event, marks, asides = self._refused
        self._refused = None
        self._catch_up()
        self._seen += 2
        self.events[event:event] = [number, ~number]
        self.event_tags[event:event] = [self.entries[number].tag] * 2
        self.marks[marks:] = [replace(one, index=one.index + 2) for one in self.marks[marks:]]
        self.asides[asides:] = [replace(one, index=one.index + 2) for one in self.asides[asides:]]

    def used_by(self, tensor: torch.Tensor, stream: int) -> None:
        """Another stream uses a tensor (``Tensor.record_stream``)."""
        number = self.held_by(tensor)
        if number is not None and stream != self.entries[number].stream:
            self.asides.append(
                Aside(index=len(self.events), what="used_by", storage=number, stream=stream)
            )
            self._allocator.record_stream(self._blocks[number], stream)

    def _tell(self, what: Op, stream: int) -> None:
        """Something of a private pool."""
        self.asides.append(Aside(index=len(self.events), what=what.value, stream=stream))
        to_pools(self._allocator, what, stream)

    def empty_cache(self) -> None:
        """``torch.cuda.empty_cache``."""
        self.asides.append(Aside(index=len(self.events), what="empty_cache"))
        self._allocator.empty_cache()

    def set_fraction(self, fraction: float) -> None:
        """``torch.cuda.set_per_process_memory_fraction``."""
        self._allocator.allowed = int(fraction * self.total)

    @property
    def fraction(self) -> float:
        """``torch.cuda.get_per_process_memory_fraction``."""
        allowed = self._allocator.allowed
        return 1.0 if allowed is None else allowed / self.total

    @property
    def free(self) -> int:
        """Bytes free on the device, as ``torch.cuda.mem_get_info`` says."""
        return max(0, self.total - self.outside - self._allocator.levels().reserved)

    def stats(self) -> dict[str, int]:
        """As ``torch.cuda.memory_stats``."""
        return self._allocator.memory_stats()

    def reset_peaks(self) -> None:
        """``torch.cuda.reset_peak_memory_stats``."""
        self._allocator.reset_peaks()

    def segments(self) -> list[dict[str, Any]]:
        """As ``torch.cuda.memory_snapshot``."""
        from memcalc.allocator.segments import segments
        from memcalc.allocator.snapshot_writer import described

        return [described(segment, {}) for segment in segments(self._allocator)]


def _words(why: FailedRequest, total: int, outside: int) -> str:
    """PyTorch's own sentence (c10/cuda/CUDACachingAllocator.cpp, 2.11 to 2.15)."""
    allowed = f"{_size(why.allowed)} allowed; " if why.allowed is not None else ""
    return (
        f"CUDA out of memory. Tried to allocate {_size(why.asked)}. GPU 0 has a total capacity of "
        f"{_size(total)} of which {_size(why.device_free)} is free. Including non-PyTorch memory, "
        f"this process has {_size(why.reserved + outside)} memory in use. {allowed}"
        f"Of the allocated memory {_size(why.allocated)} is allocated by PyTorch, and "
        f"{_size(why.reserved - why.allocated)} is reserved by PyTorch but unallocated. "
        "If reserved but unallocated memory is large try setting "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  "
        "See documentation for Memory Management  "
        "(https://docs.pytorch.org/docs/stable/notes/cuda.html"
        "#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)"
    )


def _size(count: int) -> str:
    """As ``format_size`` of c10/cuda/CUDACachingAllocator.cpp."""
    if count <= 1024:
        return f"{count} bytes"
    if count <= MIB:
        return f"{count / 1024:.2f} KiB"
    if count <= GIB:
        return f"{count / MIB:.2f} MiB"
    return f"{count / GIB:.2f} GiB"
