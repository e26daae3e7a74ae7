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
    """The memory of a process outside the allocator, by part."""

    context: Span
    """The CUDA context before the first tensor."""
    modules: Span
    """The code of kernels and libraries, loaded lazily."""
    total: Span
    """The total once a model ran."""
    eager: Span | None
    """The total if all kernels are loaded at the start (``CUDA_MODULE_LOADING=EAGER``).

    PyTorch before 1.13, and builds for CUDA before 11.7, always load them so. None for any GPU.
    """


@functools.cache
def table() -> dict[str, ContextRanges]:
    """Read the memory ranges outside the allocator by GPU name; ``any`` spans all GPUs.

    Raises:
        UsageError: the file is damaged.
    """
    return shipped.read(TABLE, lambda data: decode(dict[str, ContextRanges], data))


def ranges(gpu: Gpu | None) -> ContextRanges:
    """Return the memory ranges of a process outside the allocator on a GPU, or on any GPU."""
    return table()[gpu.name if gpu is not None else "any"]


class CodeSize(msgspec.Struct, frozen=True, kw_only=True):
    """The size of a library's code for GPUs, loaded whole unless kernels are loaded lazily."""

    name: str
    source: str
    mib: dict[str, int]
    """Size of the code by compute capability."""
    since: str = "0.0"
    """First PyTorch that ships this generation of the library."""
    before: str = "99.0"
    """First PyTorch that no longer ships it."""


@functools.cache
def libraries() -> tuple[CodeSize, ...]:
    """Read the code sizes of cuDNN versions."""
    return shipped.read("contexts.toml", lambda data: decode(tuple[CodeSize, ...], data["library"]))


def library_span(gpu: Gpu, torch: tuple[int, int]) -> Span | None:
    """Return the range of bytes of cuDNN's code on a GPU when loaded whole, or None.

    A version without code for a capability runs the code for the next lower one of the same major
    capability.
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


def sum_spans(*spans: Span) -> Span:
    """Return the sum of several byte ranges; ``likely`` is None if any is unknown."""
    likely = [span.likely for span in spans if span.likely is not None]
    return Span(
        low=sum(span.low for span in spans),
        likely=sum(likely) if len(likely) == len(spans) else None,
        high=sum(span.high for span in spans),
        source="; ".join(span.source for span in spans),
    )
