"""Whether a run fits a GPU: its events replayed at the size the device really has.

When memory runs short, PyTorch's allocator gives its cached blocks back and tries again; so more
may be reserved on a larger device than the smaller one has, and the run fits nevertheless. What
counts is whether a request fails. Source: ``DeviceCachingAllocator::malloc`` in
c10/cuda/CUDACachingAllocator.cpp, PyTorch 2.13; the model is ``memcalc.allocator``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from memcalc.allocator.counter import Levels
from memcalc.allocator.replay import Replay, replay
from memcalc.allocator.settings import AllocatorSettings
from memcalc.records.prediction import Fit, FitVerdict, Span


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run should fit. Sizes in bytes."""

    name: str
    capacity: int
    context: Span
    """Of the process, outside the allocator."""
    others: int = 0
    """What the process holds beside, such as managed memory."""

    def room(self, context: int) -> int:
        """What is left for the allocator."""
        return max(self.capacity - context - self.others, 0)


Events = Callable[[], Iterable[tuple[Any, ...]]]


def judge(events: Events, settings: AllocatorSettings, device: Device, unlimited: Levels) -> Fit:
    """Decide on the largest context that is likely; between it and the smallest nothing is sure.

    Args:
        events: gives the run's events, from the start each time.
        settings: of the allocator.
        device: where.
        unlimited: peaks of the same events on a device without a limit.
    """
    low, high = device.room(device.context.high), device.room(device.context.low)
    if unlimited.reserved <= low and not _depends_on_size(settings):
        return _fit(device, FitVerdict.FITS, unlimited.reserved)
    if unlimited.allocated > high:
        return _fit(device, FitVerdict.DOES_NOT_FIT, unlimited.reserved)

    def at(room: int) -> Replay:
        return replay(events(), settings, device.capacity, available=room)

    tight = at(low)
    if tight.out_of_memory is None:
        return _fit(device, FitVerdict.FITS, tight.peaks.reserved, tight.retries)
    loose = at(high)
    if loose.out_of_memory is None:
        return _fit(device, FitVerdict.TOO_CLOSE, loose.peaks.reserved, loose.retries)
    return _fit(device, FitVerdict.DOES_NOT_FIT, unlimited.reserved)


def _depends_on_size(settings: AllocatorSettings) -> bool:
    return settings.gc_threshold > 0 or settings.memory_fraction < 1


def _fit(device: Device, verdict: FitVerdict, reserved: int, retries: int = 0) -> Fit:
    likely = device.context.likely
    bare = reserved + device.others
    return Fit(
        gpu=device.name,
        capacity=device.capacity,
        needed=bare + (likely if likely is not None else device.context.high),
        needed_high=bare + device.context.high,
        metric="process_used",
        verdict=verdict,
        retries=retries,
    )
