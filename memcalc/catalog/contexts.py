"""Memory of a CUDA process outside PyTorch's allocator: its context, and code of kernels.

The ranges are made from published readings by scripts/make_context_ranges.py.
"""

import functools
import statistics

import msgspec

from memcalc.catalog.gpus import Gpu, parse_capability
from memcalc.files import shipped
from memcalc.files.artifact import decode
from memcalc.records.prediction import Span
from memcalc.units import MIB

TABLE = "context_ranges.json"


class ContextRanges(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of what is outside the allocator."""

    context: Span
    """Before the first tensor."""
    modules: Span
    """What kernels and libraries add."""
    total: Span
    """With a model there."""
    eager: Span | None
    """The same where all kernels are loaded at the start, as ``CUDA_MODULE_LOADING=EAGER`` has it.

    So did every PyTorch before 1.13, and every one built for CUDA before 11.7. ``None``: any GPU.
    """


@functools.cache
def table() -> dict[str, ContextRanges]:
    """Return the ranges by name of the GPU; ``any`` holds the limits over all of them.

    Raises:
        UsageError: the file is damaged.
    """
    return shipped.read(TABLE, lambda data: decode(dict[str, ContextRanges], data))


def ranges(gpu: Gpu | None) -> ContextRanges:
    """Return the ranges of a process on a GPU, or on any GPU."""
    return table()[gpu.name if gpu is not None else "any"]


class Library(msgspec.Struct, frozen=True, kw_only=True):
    """Code for GPUs in a library, which a process loads whole unless kernels are loaded lazily."""

    name: str
    source: str
    mib: dict[str, int]
    """By compute capability."""
    since: str = "0.0"
    """First PyTorch that brings this generation of it."""
    before: str = "99.0"
    """First PyTorch that does not any more."""


@functools.cache
def libraries() -> tuple[Library, ...]:
    """Return the versions of cuDNN whose code was weighed."""
    return shipped.read("contexts.toml", lambda data: decode(tuple[Library, ...], data["library"]))


def library_span(gpu: Gpu, torch: tuple[int, int]) -> Span | None:
    """Return the size of cuDNN's convolutions, loaded whole; None if no version has any for a GPU.

    A version that has none for this capability runs the capability before it in its generation.
    """
    sizes: dict[str, int] = {}
    for library in libraries():
        if not parse_capability(library.since) <= torch < parse_capability(library.before):
            continue
        known = {parse_capability(text): mib for text, mib in library.mib.items()}
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


def together(*spans: Span) -> Span:
    """Add up several parts; the sum has a likely figure if every part has one."""
    likely = [span.likely for span in spans if span.likely is not None]
    return Span(
        low=sum(span.low for span in spans),
        likely=sum(likely) if len(likely) == len(spans) else None,
        high=sum(span.high for span in spans),
        source="; ".join(span.source for span in spans),
    )
