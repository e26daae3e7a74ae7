"""One statistic of the allocator, and the levels requested, allocated and reserved."""

from __future__ import annotations

import msgspec


class Levels(msgspec.Struct, frozen=True, kw_only=True):
    """Four rungs of the ladder at one moment, or the peak of each, in bytes."""

    requested: int
    allocated: int
    """Sizes of the blocks that hold the requests."""
    active: int
    """Allocated, and freed blocks that another stream may still use."""
    reserved: int
    """What the allocator holds of the device."""


class Counter:
    """One statistic that changes rarely: its level, its peak, and the sum of its increases."""

    __slots__ = ("current", "peak", "total")

    def __init__(self) -> None:
        self.current = 0
        self.peak = 0
        self.total = 0

    def change(self, amount: int) -> None:
        """Raise the level, or lower it."""
        self.current += amount
        if amount > 0:
            self.total += amount
            if self.current > self.peak:
                self.peak = self.current

    def reset_peak(self) -> None:
        """Forget the peak so far."""
        self.peak = self.current

    def named(self, name: str) -> dict[str, int]:
        """The four figures PyTorch reports of a statistic."""
        return {
            f"{name}.current": self.current,
            f"{name}.peak": self.peak,
            f"{name}.allocated": self.total,
            f"{name}.freed": self.total - self.current,
        }
