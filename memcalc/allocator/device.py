"""The device as the allocator sees it: free memory and addresses."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from memcalc.allocator.settings import DEVICE_PAGE

FIRST_ADDRESS = 0x7F00_0000_0000
"""Where made-up addresses begin; they only grow, so that no two segments are ever alike."""


class DeviceMemory:
    """A device with so much memory.

    Which free block is taken among equals depends on the order of addresses, and that is the
    driver's secret: addresses grow here, unless the recorded ones of a real run are given.

    Args:
        total: bytes of the device (``cudaDeviceProp.totalGlobalMem``); fractions refer to it.
        available: bytes of it this process's allocator may take; ``None``: all.
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
