"""The memory of one GPU that a script finds, as a model of PyTorch's allocator keeps it."""

from __future__ import annotations

from typing import Any

from memcalc.allocator.caching import CachingAllocator, FailedRequest
from memcalc.allocator.constants import (
    LARGE_SEGMENT,
    SEGMENT_ROUNDING,
    SMALL_REQUEST,
    SMALL_SEGMENT,
)
from memcalc.allocator.device import FIRST_ADDRESS, DeviceMemory
from memcalc.allocator.settings import AllocatorSettings
from memcalc.units import GIB, MIB

_SURELY_SMALL = SMALL_REQUEST // 2
"""Requests up to this are small ones however they are rounded."""
_SPACE = 1 << 40
"""Bytes of addresses for each GPU: more than any has."""


class OneGpu:
    """Blocks and segments on one device.

    Args:
        index: of the device.
        settings: of the allocator.
        total: bytes of the device.
        outside: bytes of it that the process holds outside the allocator.
        limit: bytes that the allocator may take.
    """

    def __init__(
        self, index: int, settings: AllocatorSettings, *, total: int, outside: int, limit: int
    ) -> None:
        self.index, self.total, self.outside = index, total, outside
        self._limit = limit
        self.use(settings)
        self.blocks: dict[int, Any] = {}
        """By the storages that live there."""
        self._most = 0
        """Bytes that can be reserved at most after all events."""

    def use(self, settings: AllocatorSettings) -> None:
        """Be an allocator with these settings; it holds nothing yet."""
        # Rounding to divisions of powers of two doubles a size at most.
        self._rounding = max(settings.large_segment, LARGE_SEGMENT) + SEGMENT_ROUNDING
        # All GPUs of a process share one space of addresses.
        begins = FIRST_ADDRESS + self.index * _SPACE
        memory = DeviceMemory(self.total, available=self._limit, first_address=begins)
        self.model = CachingAllocator(settings, memory)

    def surely_takes(self, size: int) -> bool:
        """One storage more is neither refused nor makes the allocator give its cache back."""
        # A request takes one segment at most, whose size is rounded up.
        self._grows = SMALL_SEGMENT if size <= _SURELY_SMALL else 2 * size + self._rounding
        self._most += self._grows
        return self._most <= self._room

    def takes_now(self) -> bool:
        """The same, now that the model has seen all events before that storage's birth."""
        self._most = self.model.levels().reserved + self._grows
        return self._most <= self._room

    def look(self) -> None:
        """The model has seen all events."""
        self._most = self.model.levels().reserved

    @property
    def _room(self) -> int:
        """Bytes up to which nothing is refused or given back; none where garbage is collected."""
        if self.model.collects:
            return -1
        allowed = self.model.allowed
        return self._limit if allowed is None else min(self._limit, allowed)

    @property
    def free(self) -> int:
        """Bytes free on the device, as ``torch.cuda.mem_get_info`` says."""
        return max(0, self.total - self.outside - self.model.levels().reserved)

    @property
    def fraction(self) -> float:
        """``torch.cuda.get_per_process_memory_fraction``."""
        allowed = self.model.allowed
        return 1.0 if allowed is None else allowed / self.total

    def set_fraction(self, fraction: float) -> None:
        """``torch.cuda.set_per_process_memory_fraction``."""
        self.model.allow(int(fraction * self.total))

    def segments(self) -> list[dict[str, Any]]:
        """As ``torch.cuda.memory_snapshot``."""
        from memcalc.allocator.segments import segments
        from memcalc.allocator.snapshot_writer import described

        found = [described(segment, {}) for segment in segments(self.model)]
        return [{**segment, "device": self.index} for segment in found]

    def words(self, why: FailedRequest) -> str:
        """PyTorch's own sentence (c10/cuda/CUDACachingAllocator.cpp, 2.11 to 2.15)."""
        allowed = f"{_size(why.allowed)} allowed; " if why.allowed is not None else ""
        held = why.reserved + self.outside
        return (
            f"CUDA out of memory. Tried to allocate {_size(why.asked)}. GPU {self.index} has a "
            f"total capacity of {_size(self.total)} of which {_size(why.device_free)} is free. "
            f"Including non-PyTorch memory, this process has {_size(held)} memory in use. "
            f"{allowed}Of the allocated memory {_size(why.allocated)} is allocated by PyTorch, and "
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
