"""Judges whether a run fits a GPU, by a replay of its calls at the device's real size.

When memory runs short, PyTorch's allocator frees its cached blocks and tries again. So a run may
reserve more on a larger device than a smaller one has, and fit the smaller one nevertheless. A run
does not fit if a request fails. Source: ``DeviceCachingAllocator::malloc`` in
c10/cuda/CUDACachingAllocator.cpp, PyTorch 2.13, which runs the replay.
"""

from collections.abc import Callable, Sequence

import msgspec
from msgspec.structs import replace

from memcalc.catalog.contexts import library_span, ranges, sum_spans
from memcalc.catalog.gpus import Gpu
from memcalc.catalog.nccl import nccl_span
from memcalc.engine.alloc_conf import AllocatorSettings
from memcalc.estimation.question import ResolvedPlan
from memcalc.records.levels import Levels
from memcalc.records.prediction import Fit, FitVerdict, Growth, Span
from memcalc.records.replay import Card, Replay
from memcalc.units import format_bytes

CONTEXT = "CUDA context, before the first tensor"
CODE = "code of kernels and handles of libraries"
NCCL = "buffers of NCCL"
EAGER = "CUDA context and all kernels of PyTorch, loaded at the start"
CUDNN = "code of cuDNN's convolutions, loaded whole"
OLD_DRIVER = "all kernels at the start, with a driver before 515"
_SINCE_515 = (2, 1)
"""First PyTorch whose builds all need a driver that loads kernels lazily: builds for CUDA 12 need
525, and 2.0 was built for 11.7, which needs 450. Sources: CUDA Compatibility, minimum driver
versions; CUDA Programming Guide 4.7.3, requirements for lazy loading (515)."""


def outside_span(
    gpu: Gpu | None,
    question: ResolvedPlan | None = None,
    *,
    convolves: bool = False,
    groups: tuple[int, ...] = (),
) -> Span:
    """Return the byte range of a process outside the allocator, on a GPU or over all GPUs.

    ``convolves``: the model has convolutions, so cuDNN is loaded; ``groups``: the size of each
    group that communicates through NCCL, in addition to the groups of the plan's layout.
    """
    named = _spans_by_name(gpu, question, convolves=convolves)
    total = named.pop(None)
    if question is not None and not question.plan.command:
        groups = (*groups, *question.spread.groups)
    if groups:
        named[NCCL] = nccl_span(gpu, groups)
        total = sum_spans(total, named[NCCL])
    parts = tuple(
        replace(span, name=name, parts=()) for name, span in named.items() if name is not None
    )
    return replace(total, parts=parts)


def _spans_by_name(
    gpu: Gpu | None, question: ResolvedPlan | None, *, convolves: bool
) -> dict[str | None, Span]:
    """Return the byte ranges of context and kernel code by name, their total under None.

    They depend on whether kernels are loaded lazily.
    """
    held = ranges(gpu)
    lazy: dict[str | None, Span] = {CONTEXT: held.context, CODE: held.modules, None: held.total}
    if gpu is None or question is None or question.plan.module_loading == "lazy":
        return lazy
    loading, version = question.plan.module_loading, question.target.torch
    if loading is None and version >= _SINCE_515:
        return lazy
    # All kernels of a library are loaded at once.
    assert held.eager is not None
    bare = whole = held.eager
    named: dict[str | None, Span] = {EAGER: bare}
    library = library_span(gpu, version) if convolves else None
    if library is not None:
        whole = sum_spans(bare, library)
        named[CUDNN] = library
    if loading == "eager":
        return {**named, None: whole}
    more = max(whole.high - held.total.high, 0)
    old = Span(low=0, likely=0, high=more, source=f"PyTorch 2.0 runs there; {whole.source}")
    return {**lazy, OLD_DRIVER: old, None: sum_spans(held.total, old)}


MARGIN = 0.03
"""Share of the GPU that a fitting run leaves free, for other processes and fragmentation."""


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU that a run should fit. Sizes in bytes."""

    name: str
    capacity: int
    context: Span
    """The memory of the process outside the allocator."""

    def room(self, context: int) -> int:
        """Return the bytes left for the allocator beside a context of this size."""
        return max(self.capacity - context, 0)

    def cards(self, conf: str) -> tuple[Card, Card]:
        """Return the cards to replay on: with the largest, and with the smallest context.

        ``conf``: ``PYTORCH_ALLOC_CONF`` of the run.
        """
        high, low = (
            Card(conf=conf, capacity=self.capacity, room=self.room(context))
            for context in (self.context.high, self.context.low)
        )
        return high, low


def make_device(gpu: Gpu | None, question: ResolvedPlan | None = None) -> Device:
    """Return a GPU as a device to fit, with its context, for a plan or for any."""
    memory = question.memory if question is not None else None
    capacity = memory if memory is not None else gpu.memory if gpu is not None else 0
    size = f" of {format_bytes(capacity)}" if memory is not None else ""
    name = gpu.name if gpu is not None else "a GPU"
    return Device(
        name=f"{name}{size}",
        capacity=capacity,
        context=outside_span(gpu, question),
    )


def verdict_with_spare(fit: Fit, context: Span | None, spare: int) -> FitVerdict:
    """Return the verdict of a fit if ``spare`` bytes of the GPU must stay free."""
    room, low = fit.capacity - spare, fit.needed
    if context is not None and context.likely is not None:
        low += context.low - context.likely
    if fit.verdict is FitVerdict.DOES_NOT_FIT or low > room:
        return FitVerdict.DOES_NOT_FIT
    roomy = fit.most <= room or fit.verdict is FitVerdict.LEAKS
    return fit.verdict if roomy else FitVerdict.TIGHT


def margin(capacity: int) -> int:
    """Return the bytes that must stay free for a run to fit for sure."""
    return int(capacity * MARGIN)


def explain_tight(fit: Fit) -> str:
    """Return the reason why a fit is tight, in a few words."""
    if fit.retries:
        times = "once" if fit.retries == 1 else f"{fit.retries} times"
        return f"it runs only because the allocator frees cached blocks {times}"
    if fit.least_margin < 0:
        return f"up to {format_bytes(-fit.least_margin)} too much with the largest context"
    return f"only {format_bytes(fit.least_margin)} to spare with the largest context"


def describe_growth(grows: Growth) -> str:
    """Return a phrase on a script's memory growth: bytes per step, steps until full, line."""
    often = "a step on average" if grows.varies else "every step"
    full = f", out of memory after about {grows.steps:,} more steps" if grows.steps else ""
    at = f"; made at {grows.line}" if grows.line else ""
    by = f"{',' if at else ';'} kept by the variable {grows.holder}" if grows.holder else ""
    line = f" at {grows.filled}" if grows.filled else ""
    return f"grows by {format_bytes(grows.bytes)} {often}{full}{at}{by}{line}"


def cards_to_try(
    settings: AllocatorSettings, device: Device, unlimited: Levels
) -> tuple[Card, ...]:
    """Return the cards on which a run must be replayed to judge its fit; () if none.

    ``unlimited``: peaks of the run without a memory limit.
    """
    cards = device.cards(settings.text)
    by_size = settings.gc_threshold > 0 or settings.memory_fraction < 1
    if unlimited.reserved <= cards[0].room and not by_size:
        return ()
    return cards if unlimited.allocated <= cards[1].room else ()


def judge(
    replays: Callable[[Sequence[Card]], Sequence[Replay]],
    settings: AllocatorSettings,
    device: Device,
    unlimited: Levels,
) -> Fit:
    """Judge whether a run fits a device, by replays with the largest and smallest context.

    A run that fits with the smallest context only is tight.
    """
    allowed = settings.reservable_bytes(device.capacity)
    cards = cards_to_try(settings, device, unlimited)
    for card, found in zip(cards, (None, FitVerdict.TIGHT), strict=False):
        (run,) = replays([card])
        if run.refused is None:
            return _make_fit(device, allowed, found, run.peaks.reserved, run.retries)
    fails = cards or unlimited.allocated > device.room(device.context.low)
    found = FitVerdict.DOES_NOT_FIT if fails else None
    return _make_fit(device, allowed, found, unlimited.reserved)


def cannot_fit(least: int, device: Device) -> Fit | None:
    """Return a fit that says no if ``least`` bytes exceed the device, else None."""
    if least <= device.room(device.context.low):
        return None
    return Fit(
        gpu=device.name,
        capacity=device.capacity,
        needed=least,
        metric="allocated",
        verdict=FitVerdict.DOES_NOT_FIT,
    )


def _make_fit(
    device: Device, allowed: int | None, found: FitVerdict | None, reserved: int, retries: int = 0
) -> Fit:
    """Return the fit of a run with these reserved bytes; ``found``: a verdict already known."""
    likely = device.context.likely
    outside = likely if likely is not None else device.context.high
    high = reserved + device.context.high
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
