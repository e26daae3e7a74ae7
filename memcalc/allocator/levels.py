"""What the allocator holds, in the rungs of the ladder, and the highest of each so far.

Source: ``DeviceStats`` in ``c10/core/CachingDeviceAllocator.h`` of torch 2.13.
"""

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


def highest(*levels: Levels) -> Levels:
    """The highest of each rung."""
    rungs = Levels.__struct_fields__
    return Levels(**{rung: max(getattr(one, rung) for one in levels) for rung in rungs})


class Tally:
    """Levels that change with every event, and their peaks; written out for speed."""

    __slots__ = (
        "active_peak",
        "allocated",
        "allocated_peak",
        "requested",
        "requested_peak",
        "reserved",
        "reserved_peak",
        "waiting",
    )

    def __init__(self) -> None:
        self.requested = self.requested_peak = 0
        self.allocated = self.allocated_peak = 0
        self.waiting = self.active_peak = 0
        self.reserved = self.reserved_peak = 0

    def add(self, size: int, requested: int) -> None:
        """Count a block that was handed out: its size, and what was asked for."""
        self.allocated = held = self.allocated + size
        self.requested = asked = self.requested + requested
        if held > self.allocated_peak:
            self.allocated_peak = held
        if asked > self.requested_peak:
            self.requested_peak = asked
        if self.waiting and held + self.waiting > self.active_peak:
            self.active_peak = held + self.waiting

    def drop(self, size: int, requested: int) -> None:
        """Count a block that came back and waits for no stream."""
        self.allocated -= size
        self.requested -= requested

    def wait(self, size: int) -> None:
        """Count a block that was freed, but stays active until other streams have passed."""
        self.allocated -= size
        self.waiting += size

    def done(self, size: int, requested: int) -> None:
        """Count a block that waited and is free now."""
        self.waiting -= size
        self.requested -= requested

    def change_reserved(self, size: int) -> None:
        """Count memory taken from the device (``size`` > 0) or given back."""
        self.reserved += size
        self.reserved_peak = max(self.reserved_peak, self.reserved)

    def levels(self) -> Levels:
        """What is held now."""
        return Levels(
            requested=self.requested,
            allocated=self.allocated,
            active=self.allocated + self.waiting,
            reserved=self.reserved,
        )

    def peaks(self) -> Levels:
        """The peak of each rung since the last reset; they need not belong to one moment."""
        return Levels(
            requested=self.requested_peak,
            allocated=self.allocated_peak,
            active=max(self.allocated_peak, self.active_peak),
            reserved=self.reserved_peak,
        )

    def reset_peaks(self) -> None:
        """Make every level its own peak (``torch.cuda.reset_peak_memory_stats``)."""
        self.requested_peak = self.requested
        self.allocated_peak = self.allocated
        self.active_peak = self.allocated + self.waiting
        self.reserved_peak = self.reserved
