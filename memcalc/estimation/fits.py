"""Whether a run fits a GPU: its events replayed at the size the device really has.

When memory runs short, PyTorch's allocator gives its cached blocks back and tries again; so more
may be reserved on a larger device than the smaller one has, and the run fits nevertheless. What
counts is whether a request fails. Source: ``DeviceCachingAllocator::malloc`` in
c10/cuda/CUDACachingAllocator.cpp, PyTorch 2.13; the model is ``memcalc.allocator``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from memcalc.catalog.gpus import Gpu
from memcalc.estimation.process_share import outside_span
from memcalc.records.model import OptimizerState, Place
from memcalc.records.plan import Plan
from memcalc.records.prediction import Fit, FitVerdict, Growth, Span
from memcalc.units import format_bytes

if TYPE_CHECKING:
    from memcalc.allocator.levels import Levels
    from memcalc.allocator.settings import AllocatorSettings


MARGIN = 0.03
"""A run that leaves less of the GPU is tight: other processes and fragmentation need as much."""


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

    def holding(self, state: OptimizerState) -> Device:
        """The same for a process that holds this optimizer's managed memory beside."""
        return replace(self, others=state.total(Place.MANAGED))


def device_of(gpu: Gpu | None, memory: int | None = None, plan: Plan | None = None) -> Device:
    """A GPU as a run of this plan finds it, or a device of so many bytes in its place."""
    capacity = memory if memory is not None else gpu.memory if gpu is not None else 0
    size = f" of {format_bytes(capacity)}" if memory is not None else ""
    name = gpu.name if gpu is not None else "a GPU"
    return Device(
        name=f"{name}{size}",
        capacity=capacity,
        context=outside_span(gpu, plan),
    )


def with_spare(fit: Fit, context: Span | None, spare: int) -> FitVerdict:
    """The verdict where so many bytes of the GPU are to stay free.

    Args:
        fit: the run replayed at the device's size.
        context: of the process.
        spare: bytes; ``MARGIN`` of the GPU stays free in any case.
    """
    room, low = fit.capacity - spare, fit.needed
    if context is not None and context.likely is not None:
        low += context.low - context.likely
    if fit.verdict is FitVerdict.DOES_NOT_FIT or low > room:
        return FitVerdict.DOES_NOT_FIT
    return fit.verdict if fit.most <= room else FitVerdict.TIGHT


def margin(capacity: int) -> int:
    """Bytes of a GPU that stay free where a run fits it."""
    return int(capacity * MARGIN)


def why_tight(fit: Fit) -> str:
    """What makes a fit tight, in a few words."""
    if fit.retries:
        times = "once" if fit.retries == 1 else f"{fit.retries} times"
        return f"it runs only because the allocator frees cached blocks {times}"
    if fit.least_margin < 0:
        return f"up to {format_bytes(-fit.least_margin)} too much with the largest context"
    return f"only {format_bytes(fit.least_margin)} to spare with the largest context"


def growth_words(grows: Growth) -> str:
    """By how much a script grows, until when, and where."""
    full = f", out of memory after about {grows.steps:,} steps" if grows.steps else ""
    at = f"; allocated at {grows.line}" if grows.line else ""
    by = f", held by the variable {grows.holder}" if grows.holder else ""
    return f"grows by {format_bytes(grows.bytes)} every step{full}{at}{by}"


Events = Callable[[], Iterable[tuple[Any, ...]]]


def judge(
    events: Events,
    settings: AllocatorSettings,
    device: Device,
    unlimited: Levels,
) -> Fit:
    """Replay a run with the largest context that is likely; with the smallest it is tight.

    Args:
        events: gives the run's events, from the start each time.
        settings: of the allocator.
        device: where.
        unlimited: peaks of the same run on a device without a limit.
    """
    low = device.room(device.context.high)
    high = device.room(device.context.low)
    allowed = settings.allowed(device.capacity)
    by_size = settings.gc_threshold > 0 or settings.memory_fraction < 1
    if unlimited.reserved <= low and not by_size:
        return _fit(device, allowed, None, unlimited.reserved)
    if unlimited.allocated > high:
        return _fit(device, allowed, FitVerdict.DOES_NOT_FIT, unlimited.reserved)

    from memcalc.allocator.replay import replay

    for room, found in ((low, None), (high, FitVerdict.TIGHT)):
        run = replay(events(), settings, device.capacity, available=room)
        if run.out_of_memory is None:
            return _fit(device, allowed, found, run.peaks.reserved, run.retries)
    return _fit(device, allowed, FitVerdict.DOES_NOT_FIT, unlimited.reserved)


def hopeless(least: int, device: Device) -> Fit | None:
    """The answer where so many live bytes alone are too many for the device, else ``None``."""
    if least <= device.room(device.context.low):
        return None
    return Fit(
        gpu=device.name,
        capacity=device.capacity,
        needed=least,
        metric="allocated",
        verdict=FitVerdict.DOES_NOT_FIT,
    )


def _fit(
    device: Device, allowed: int | None, found: FitVerdict | None, reserved: int, retries: int = 0
) -> Fit:
    """What a process with so much reserved needs; ``found`` is ``None`` where it has the room."""
    likely = device.context.likely
    outside = device.others + (likely if likely is not None else device.context.high)
    high = reserved + device.others + device.context.high
    roomy = high <= device.capacity - margin(device.capacity) and not retries
    return Fit(
        gpu=device.name,
        capacity=device.capacity,
        needed=reserved + outside,
        needed_high=high,
        metric="process_used",
        verdict=found or (FitVerdict.FITS if roomy else FitVerdict.TIGHT),
        retries=retries,
        allowed=allowed + outside if allowed is not None else None,
    )
