"""The allocator's statistics, as ``torch.cuda.memory_stats`` names them.

What runs at every event is written out for speed: the peaks of the whole device
are kept beside those of the pool that changes, and everything else is summed when asked for.

Source: ``DeviceStats`` in ``c10/core/CachingDeviceAllocator.h`` of torch 2.13.
"""

from __future__ import annotations

from memcalc.allocator.counter import Counter, Levels


class PoolStats:
    """What one pool, or the whole device, holds.

    ``total`` figures are sums of increases. Active figures are allocated plus waiting: their peaks
    here are those seen while something waited, the others are those of allocated.
    """

    __slots__ = (
        "active_bytes_peak",
        "active_peak",
        "bytes",
        "bytes_peak",
        "bytes_total",
        "count",
        "count_peak",
        "count_total",
        "device",
        "other",
        "requested",
        "requested_peak",
        "requested_total",
        "reserved",
        "segments",
        "split",
        "split_bytes",
        "split_bytes_peak",
        "split_bytes_total",
        "split_peak",
        "split_total",
        "waiting",
        "waiting_bytes",
    )

    def __init__(self, device: PoolStats | None = None) -> None:
        self.device = self if device is None else device
        """The one that keeps the peaks of both pools together."""
        self.other = self
        """The other pool's stats."""
        self.count = self.count_peak = self.count_total = 0
        self.bytes = self.bytes_peak = self.bytes_total = 0
        self.requested = self.requested_peak = self.requested_total = 0
        self.waiting = self.waiting_bytes = 0
        self.active_peak = self.active_bytes_peak = 0
        self.segments, self.reserved = Counter(), Counter()
        self.split = self.split_peak = self.split_total = 0
        self.split_bytes = self.split_bytes_peak = self.split_bytes_total = 0

    def add(self, size: int, requested: int) -> None:
        """Count a block that was handed out: its size, and what was asked for."""
        other, device = self.other, self.device
        self.count = count = self.count + 1
        self.bytes = held = self.bytes + size
        self.requested = asked = self.requested + requested
        self.count_total += 1
        self.bytes_total += size
        self.requested_total += requested
        if count > self.count_peak:
            self.count_peak = count
        if held > self.bytes_peak:
            self.bytes_peak = held
        if asked > self.requested_peak:
            self.requested_peak = asked
        if (both := count + other.count) > device.count_peak:
            device.count_peak = both
        if (both := held + other.bytes) > device.bytes_peak:
            device.bytes_peak = both
        if (both := asked + other.requested) > device.requested_peak:
            device.requested_peak = both
        if self.waiting or other.waiting:
            self._note_active()

    def drop(self, size: int, requested: int) -> None:
        """Count a block that came back and waits for no stream."""
        self.count -= 1
        self.bytes -= size
        self.requested -= requested

    def wait(self, size: int) -> None:
        """Count a block that was freed, but stays active until other streams have passed."""
        self.count -= 1
        self.bytes -= size
        self.waiting += 1
        self.waiting_bytes += size

    def done(self, size: int, requested: int) -> None:
        """Count a block that waited and is free now."""
        self.waiting -= 1
        self.waiting_bytes -= size
        self.requested -= requested

    def change_split(self, count: int, size: int) -> None:
        """Change how much lies free in segments that are partly in use."""
        other, device = self.other, self.device
        self.split = pieces = self.split + count
        self.split_bytes = held = self.split_bytes + size
        if count > 0:
            self.split_total += count
            if pieces > self.split_peak:
                self.split_peak = pieces
            if (both := pieces + other.split) > device.split_peak:
                device.split_peak = both
        if size > 0:
            self.split_bytes_total += size
            if held > self.split_bytes_peak:
                self.split_bytes_peak = held
            if (both := held + other.split_bytes) > device.split_bytes_peak:
                device.split_bytes_peak = both

    def change_reserved(self, size: int, segments: int = 0) -> None:
        """Count memory taken from the device, or given back to it."""
        self.reserved.change(size)
        self.segments.change(segments)
        self.device.reserved.change(size)
        self.device.segments.change(segments)

    def reset_peaks(self) -> None:
        """Make every level its own peak (``torch.cuda.reset_peak_memory_stats``)."""
        self.count_peak, self.bytes_peak = self.count, self.bytes
        self.requested_peak = self.requested
        self.active_peak = self.count + self.waiting
        self.active_bytes_peak = self.bytes + self.waiting_bytes
        self.split_peak, self.split_bytes_peak = self.split, self.split_bytes
        self.segments.reset_peak()
        self.reserved.reset_peak()

    def _note_active(self) -> None:
        other, device = self.other, self.device
        active, size = self.count + self.waiting, self.bytes + self.waiting_bytes
        self.active_peak = max(self.active_peak, active)
        self.active_bytes_peak = max(self.active_bytes_peak, size)
        active += other.count + other.waiting
        size += other.bytes + other.waiting_bytes
        device.active_peak = max(device.active_peak, active)
        device.active_bytes_peak = max(device.active_bytes_peak, size)


class DeviceStats:
    """The tallies of both pools and of the device."""

    __slots__ = ("device", "large", "small")

    def __init__(self) -> None:
        self.device = PoolStats()
        self.small, self.large = PoolStats(self.device), PoolStats(self.device)
        self.small.other, self.large.other = self.large, self.small

    def levels(self) -> Levels:
        """What is held now."""
        device = self._summed()
        return Levels(
            requested=device.requested,
            allocated=device.bytes,
            active=device.bytes + device.waiting_bytes,
            reserved=device.reserved.current,
        )

    def peaks(self) -> Levels:
        """The peak of each rung since the last reset; they need not belong to one moment."""
        device = self.device
        return Levels(
            requested=device.requested_peak,
            allocated=device.bytes_peak,
            active=max(device.bytes_peak, device.active_bytes_peak),
            reserved=device.reserved.peak,
        )

    def reset_peaks(self) -> None:
        """Make every level its own peak."""
        self._summed().reset_peaks()
        self.small.reset_peaks()
        self.large.reset_peaks()

    def named(self) -> dict[str, int]:
        """Every figure under its key in ``torch.cuda.memory_stats``."""
        named: dict[str, int] = {}
        for pool, stats in (
            ("all", self._summed()),
            ("small_pool", self.small),
            ("large_pool", self.large),
        ):
            named |= _named(pool, stats)
        return named

    def _summed(self) -> PoolStats:
        """The device's stats with the sums of both pools filled in."""
        for name in _SUMMED:
            setattr(self.device, name, getattr(self.small, name) + getattr(self.large, name))
        return self.device


_SUMMED = (
    "count",
    "count_total",
    "bytes",
    "bytes_total",
    "requested",
    "requested_total",
    "split",
    "split_bytes",
    "split_bytes_total",
    "split_total",
    "waiting",
    "waiting_bytes",
)


def _named(pool: str, stats: PoolStats) -> dict[str, int]:
    named: dict[str, int] = {}
    active_peak = max(stats.count_peak, stats.active_peak)
    active_bytes_peak = max(stats.bytes_peak, stats.active_bytes_peak)
    for name, current, peak, total in (
        ("allocation", stats.count, stats.count_peak, stats.count_total),
        ("allocated_bytes", stats.bytes, stats.bytes_peak, stats.bytes_total),
        ("requested_bytes", stats.requested, stats.requested_peak, stats.requested_total),
        ("active", stats.count + stats.waiting, active_peak, stats.count_total),
        (
            "active_bytes",
            stats.bytes + stats.waiting_bytes,
            active_bytes_peak,
            stats.bytes_total,
        ),
        ("inactive_split", stats.split, stats.split_peak, stats.split_total),
        (
            "inactive_split_bytes",
            stats.split_bytes,
            stats.split_bytes_peak,
            stats.split_bytes_total,
        ),
    ):
        named[f"{name}.{pool}.current"] = current
        named[f"{name}.{pool}.peak"] = peak
        named[f"{name}.{pool}.allocated"] = total
        named[f"{name}.{pool}.freed"] = total - current
    for name, counter in (
        ("segment", stats.segments),
        ("reserved_bytes", stats.reserved),
    ):
        named |= counter.named(f"{name}.{pool}")
    return named
