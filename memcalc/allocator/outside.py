"""Memory of a CUDA process outside PyTorch's allocator: its context, loaded kernels and NCCL.

NVIDIA publishes no formula, so the answer is a range out of readings (``catalog.contexts``): those
of a GPU's own kind where there are enough, else those of all GPUs, which grow about as the number
of multiprocessors does.

A few readings show less than the spread there is: the next of three lies between them every other
time, of n by (n - 1) / (n + 1). So the range reaches as far from the median of its kind as any
reading of any kind lies from that of the others of its kind.

NCCL allocates the buffers of its channels by itself, for each group of processes that communicates
(configs/nccl.toml). No reading of all groups of a training run was found, so no figure inside its
range is the likely one.
"""

import functools
import statistics
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from memcalc.catalog import contexts, gpus
from memcalc.catalog.contexts import Reading, Stage
from memcalc.catalog.gpus import Gpu
from memcalc.files import shipped
from memcalc.files.artifact import decode
from memcalc.records.prediction import Span
from memcalc.units import MIB

ENOUGH = 3
"""Readings of a kind of GPU that show its spread; with fewer, the spread of all GPUs is taken."""
_MODEL = frozenset({Stage.LOADING, Stage.INFERENCE, Stage.TRAINING})
"""With a model there. How far it had come is often not told, and makes no difference to be seen."""
_BARE = frozenset({Stage.CONTEXT})


class Outside(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of what is outside the allocator."""

    context: Span
    """Before the first tensor."""
    modules: Span
    """What kernels and libraries add."""
    total: Span


def context_span(gpu: Gpu | None) -> Span:
    """Bytes outside the allocator with a model there; without a GPU, those of any GPU."""
    return outside(gpu).total


@functools.cache
def eager_span(gpu: Gpu) -> Span:
    """The same where all kernels are loaded at the start: ``CUDA_MODULE_LOADING=EAGER``.

    So did every PyTorch before 1.13, and every one built for CUDA before 11.7.
    """
    readings = [r for r in contexts.table() if not r.lazy and not r.aside]
    own = _of_kind(gpu, readings)
    if len(own) >= ENOUGH:
        return _own(own)
    span = _by_multiprocessors(gpu, readings, len(own))
    return replace(span, low=_own(own).low, likely=_own(own).likely) if own else span


def library_span(gpu: Gpu, torch: tuple[int, int]) -> Span | None:
    """Code of cuDNN's convolutions where it is loaded whole; ``None``: no version has any for it.

    A version that has none for this capability runs that of the one before it in its generation.
    """
    sizes: dict[str, int] = {}
    for library in contexts.libraries():
        if not _pair(library.since) <= torch < _pair(library.before):
            continue
        known = {_pair(text): mib for text, mib in library.mib.items()}
        runs = [c for c in known if c[0] == gpu.capability[0] and c <= gpu.capability]
        if runs:
            sizes[library.name] = known[max(runs)] * MIB
    if not sizes:
        return None
    return Span(
        low=min(sizes.values()),
        likely=int(statistics.mean(sizes.values())),
        high=max(sizes.values()),
        source=f"code for this GPU in {', '.join(sizes)}",
    )


def _pair(text: str) -> tuple[int, int]:
    major, minor = text.split(".")
    return int(major), int(minor)


@functools.cache
def outside(gpu: Gpu | None) -> Outside:
    """Context and modules of a process on a GPU; without one, the limits over all known GPUs."""
    total, context = _span(gpu, _MODEL), _span(gpu, _BARE)
    if bare := _of_kind(gpu, comparable(_BARE)):
        # A process holds no less than its GPU's bare context, unless one was read that did.
        least = min(r.low for r in (*bare, *_of_kind(gpu, comparable(_MODEL))))
        likely = max(total.likely, least) if total.likely is not None else None
        total = replace(total, low=max(total.low, least), likely=likely)
    # A context is no larger than what the process holds with a model in it.
    low, high, likely = min(context.low, total.low), min(context.high, total.high), context.likely
    if likely is not None and total.likely is not None:
        likely = min(likely, total.likely)
    context = replace(context, low=low, likely=likely, high=high)
    likely = None
    if total.likely is not None and context.likely is not None:
        likely = total.likely - context.likely
    modules = Span(
        low=max(total.low - context.high, 0),
        likely=likely,
        high=total.high - context.low,
        source="the difference of the two",
    )
    return Outside(context=context, modules=modules, total=total)


def comparable(moments: frozenset[Stage]) -> tuple[Reading, ...]:
    """Readings at these moments that count: kernels loaded lazily, nothing set aside."""
    return tuple(r for r in contexts.table() if r.stage in moments and r.lazy and not r.aside)


def alike(gpu: Gpu, other: Gpu) -> bool:
    """The same kind of chip: what the driver sizes a context by is the same."""
    return (gpu.capability, gpu.multiprocessors) == (other.capability, other.multiprocessors)


def _of_kind(gpu: Gpu | None, readings: Sequence[Reading]) -> list[Reading]:
    return [r for r in readings if gpu is not None and alike(gpu, gpus.find(r.gpu))]


def _span(gpu: Gpu | None, moments: frozenset[Stage]) -> Span:
    readings = comparable(moments)
    if gpu is None:
        every = [_span(one, moments) for one in gpus.table()]
        source = f"any GPU, {len(readings)} readings on {_models(readings)} GPUs"
        low, high = min(span.low for span in every), max(span.high for span in every)
        return Span(low=low, likely=None, high=high, source=source)
    own = _of_kind(gpu, readings)
    measured = [r for r in own if r.measured]
    for known, others in ((measured, [r for r in readings if r.measured]), (own, readings)):
        if len(known) >= ENOUGH:
            return _next(known, others)
    return _by_multiprocessors(gpu, readings, len(own))


def _own(readings: Sequence[Reading]) -> Span:
    kind = "readings by memcalc" if all(r.measured for r in readings) else "published readings"
    return Span(
        low=min(r.low for r in readings),
        likely=int(statistics.median(r.middle for r in readings)),
        high=max(r.high for r in readings),
        source=f"{len(readings)} {kind} on {', '.join(sorted({r.gpu for r in readings}))}",
    )


def _next(own: Sequence[Reading], every: Sequence[Reading]) -> Span:
    """Where one reading more of a kind lies, by how readings of all kinds lie to one another."""
    least, most, count = _apart(every)
    span = _own(own)
    middle = statistics.median(r.middle for r in own)
    # Whole bytes, rounded outwards; a GPU's own readings always lie inside.
    return replace(
        span,
        low=min(span.low, int(middle * least)),
        high=max(span.high, -int(-middle * most // 1)),
        source=f"{span.source}, widened by {count} readings on all GPUs",
    )


def _apart(readings: Sequence[Reading]) -> tuple[float, float, int]:
    """Least and most share of a reading in the median of the others of its kind, and how many."""
    kinds: dict[tuple[tuple[int, int], int], list[Reading]] = {}
    for reading in readings:
        gpu = gpus.find(reading.gpu)
        kinds.setdefault((gpu.capability, gpu.multiprocessors), []).append(reading)
    shares = [
        (reading.low / middle, reading.high / middle)
        for kind in kinds.values()
        if len(kind) >= ENOUGH
        for number, reading in enumerate(kind)
        for middle in [statistics.median(r.middle for r in (*kind[:number], *kind[number + 1 :]))]
    ]
    return min(low for low, _ in shares), max(high for _, high in shares), len(shares)


def _by_multiprocessors(gpu: Gpu, readings: Sequence[Reading], own: int) -> Span:
    """The smallest and largest share of a multiprocessor that was read anywhere."""
    counts = [gpus.find(r.gpu).multiprocessors for r in readings]
    pairs = list(zip(readings, counts, strict=True))
    here = gpu.multiprocessors
    # A part does not shrink with the GPU: one smaller than any that was read is taken as those.
    as_large = max(here, min(counts))
    # Whole bytes, rounded outwards, so that a GPU's own readings always lie inside.
    return Span(
        low=min(r.low * here // count for r, count in pairs),
        likely=int(statistics.median(r.middle / count for r, count in pairs) * as_large),
        high=max(-(-r.high * as_large // count) for r, count in pairs),
        source=f"per multiprocessor, {len(readings)} readings on {_models(readings)} GPUs, "
        f"{own} of its kind",
    )


def _models(readings: Sequence[Reading]) -> int:
    return len({r.gpu for r in readings})


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One of the things that NCCL holds, in MiB."""

    name: str
    low: int
    high: int
    source: str
    link: str | None = None
    """Between which GPUs; ``None``: all."""
    capability: tuple[int, int] = (0, 0)
    """From which on."""
    ranks: int = 2
    """In a group of at least so many."""


class Links(msgspec.Struct, frozen=True):
    """GPUs that are joined by more than PCI Express."""

    nvlink: tuple[str, ...]


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """configs/nccl.toml."""

    part: tuple[Part, ...]
    links: Links


def nccl_span(gpu: Gpu | None, groups: tuple[int, ...]) -> Span:
    """Bytes that NCCL holds on one GPU, for groups of so many processes each."""
    low = high = 0
    nvlink = table().links.nvlink
    names: dict[str, None] = {}
    for ranks in groups:
        for part in table().part:
            link = None if gpu is None else "nvlink" if gpu.name in nvlink else "pcie"
            there = gpu is None or (part.link in (None, link) and gpu.capability >= part.capability)
            if ranks < max(part.ranks, 2) or not there:
                continue
            # Of any GPU it is not known that the part is there.
            low += part.low * MIB if gpu is not None else 0
            high += part.high * MIB
            names[part.name] = None
    many = "group" if len(groups) == 1 else "groups"
    return Span(
        low=low, likely=None, high=high, source=f"NCCL, {len(groups)} {many}: {', '.join(names)}"
    )


@functools.cache
def table() -> Table:
    """What is known of NCCL.

    Raises:
        UsageError: the file is damaged.
    """
    return shipped.read("nccl.toml", lambda data: decode(Table, data))


def together(*spans: Span) -> Span:
    """Several parts as one: ends add up; a part without a likely figure leaves none for the sum."""
    likely = [span.likely for span in spans if span.likely is not None]
    return Span(
        low=sum(span.low for span in spans),
        likely=sum(likely) if len(likely) == len(spans) else None,
        high=sum(span.high for span in spans),
        source="; ".join(span.source for span in spans),
    )
