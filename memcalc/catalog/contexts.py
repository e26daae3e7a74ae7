"""Published readings of memory outside PyTorch's allocator (configs/contexts.toml).

Published readings are figures as their authors printed them; measured ones are made from files of
``memcalc measure`` (configs/contexts_measured.json, where there is one).
"""

import functools
from collections.abc import Iterable
from enum import Enum
from typing import Any

import msgspec

from memcalc.files import shipped
from memcalc.files.artifact import decode
from memcalc.units import printed_bytes

MEASURED = "contexts_measured.json"


class Stage(Enum):
    """How far a process had come when it was read."""

    CONTEXT = "context"
    """Nothing but the CUDA context."""
    TENSOR = "tensor"
    """The first tensor."""
    LOADING = "loading"
    """Weights, but no kernels of a model yet."""
    INFERENCE = "inference"
    """A model loaded or running; a report that does not tell which is counted here."""
    TRAINING = "training"


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """One process on one GPU: bytes outside the allocator, as far as the figures were printed."""

    gpu: str
    stage: Stage
    low: int
    high: int
    lazy: bool
    """Kernels loaded when they are first used; else all of a library's at once."""
    source: str
    torch: str | None = None
    cuda: str | None = None
    driver: str | None = None
    note: str = ""
    aside: str = ""
    """Why it counts for nothing; empty: it counts."""
    measured: bool = False
    """Measured by memcalc; else published."""

    @property
    def middle(self) -> int:
        """Halfway between what the printed figures leave open."""
        return (self.low + self.high) // 2


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
    """Versions of cuDNN whose code was weighed."""
    return shipped.read("contexts.toml", lambda data: decode(tuple[Library, ...], data["library"]))


@functools.cache
def table() -> tuple[Reading, ...]:
    """All readings: published, then measured ones."""

    def reading(entry: dict[str, Any]) -> dict[str, Any]:
        low, high = outside(entry["used"], entry.get("reserved", ()))
        return {**entry, "low": low, "high": high}

    published = shipped.read(
        "contexts.toml",
        lambda data: decode(tuple[Reading, ...], list(map(reading, data["reading"]))),
    )
    if not (shipped.configs() / MEASURED).exists():
        return published
    return *published, *shipped.read(MEASURED, lambda data: decode(tuple[Reading, ...], data))


def outside(used: str, reserved: Iterable[str]) -> tuple[int, int]:
    """Least and most bytes between two printed figures, half of their last digit either way."""
    low, high = printed_bytes(used)
    for part in reserved:
        least, most = printed_bytes(part)
        low, high = low - most, high - least
    return low, high
