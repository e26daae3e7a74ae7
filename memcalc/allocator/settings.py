"""``PYTORCH_ALLOC_CONF``: its syntax, its checks, and the settings that change memory.

Source: ``c10/core/AllocatorConfig.h`` and ``c10/cuda/CUDAAllocatorConfig.h`` of torch 2.11 and
2.13; each check below was seen in the error of the real parser of those versions.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator
from typing import Final

import msgspec
from msgspec.structs import replace

from memcalc.allocator.constants import (
    DIVISION_INTERVALS,
    LARGE_SEGMENT,
    MIN_BLOCK,
    MIN_OWN_SEGMENT,
    UNLIMITED,
)
from memcalc.errors import UsageError
from memcalc.units import MIB
from memcalc.version import NEWEST_TORCH

Value = str | tuple[tuple[str, str], ...]
"""One word, or the pairs of a list such as ``[64:4,>:8]``."""

_EXAMPLE = "write key:value pairs set apart by commas, such as expandable_segments:True"
_PAIR = re.compile(r"([^:,\[\]]+):(?:([^:,\[\]]+)|\[([^\[\]]*)\])(?:,|$)")


def pairs(text: str) -> Iterator[tuple[str, Value]]:
    """Cut a configuration into its keys and values; white space counts for nothing.

    Raises:
        UsageError: the text is not a list of ``key:value``.
    """
    packed = "".join(text.split())
    at = 0
    while at < len(packed):
        match = _PAIR.match(packed, at)
        if match is None:
            raise UsageError(f"Cannot read allocator settings at {packed[at:]!r}: {_EXAMPLE}.")
        key, word, listed = match.groups()
        yield key, word if word is not None else _listed(key, listed)
        at = match.end()


def each(text: str) -> Iterator[str]:
    """The ``key:value`` pairs of a configuration that was read, as they are written."""
    for match in _PAIR.finditer("".join(text.split())):
        yield match[0].rstrip(",")


def _listed(key: str, text: str) -> tuple[tuple[str, str], ...]:
    entries = [entry.split(":") for entry in text.split(",")] if text else []
    if any(len(entry) != 2 or not all(entry) for entry in entries):
        raise UsageError(f"Cannot read the list of {key}: write it as {key}:[64:4,256:8,>:0].")
    return tuple((name, count) for name, count in entries)


def whole(key: str, value: Value) -> int:
    """Read a whole number.

    Raises:
        UsageError: it is none. (PyTorch cuts ``200.5`` to 200 and takes ``-5`` for a huge number;
        nobody means that.)
    """
    if isinstance(value, str) and value.isascii() and value.isdigit():
        return int(value)
    raise UsageError(f"{key} takes a whole number of MiB: write {key}:128.")


def fraction(key: str, value: Value) -> float:
    """Read a number such as ``0.8``.

    Raises:
        UsageError: it is none.
    """
    if isinstance(value, str) and re.fullmatch(r"\d*\.?\d+|\d+\.", value, re.ASCII):
        return float(value)
    raise UsageError(f"{key} takes a number from 0 to 1: write {key}:0.8.")


def boolean(key: str, value: Value) -> bool:
    """Read ``True`` or ``False``, spelled so.

    Raises:
        UsageError: it is neither.
    """
    if value in ("True", "False"):
        return value == "True"
    raise UsageError(f"{key} takes True or False, spelled so: write {key}:True.")


def power_of_two(key: str, text: str) -> int:
    """Read a power of two.

    Raises:
        UsageError: it is none.
    """
    number = int(text) if text.isascii() and text.isdigit() else 0
    if number and number & (number - 1) == 0:
        return number
    raise UsageError(f"{key} takes powers of two, not {text!r}: write {key}:4 or {key}:[64:4,>:8].")


Version = tuple[int, int]
_FRACTION: Final = "per_process_memory_fraction"
_DIVISIONS_FROM_NEXT: Final[Version] = (2, 10)
"""``>`` overwrote the last interval named in 2.4, 2.6 and 2.9; it does not in 2.11 and 2.13."""


class AllocatorSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the caching allocator that change how many bytes it holds. Sizes in bytes."""

    max_split: int = UNLIMITED
    """Blocks of this size and more are never split."""
    max_non_split_rounding: int = LARGE_SEGMENT
    """How much larger than the request an unsplittable block may be."""
    divisions: tuple[int, ...] = (0,) * DIVISION_INTERVALS
    """Steps between one power of two and the next, by interval from 1 MiB on; 0 rounds to 512."""
    large_segment: int = LARGE_SEGMENT
    expandable: bool = False
    gc_threshold: float = 0.0
    """Part of the allowed memory above which old cached blocks are given back; 0: never."""
    memory_fraction: float = 1.0
    """Part of the device's memory the process may reserve."""
    torch: Version = NEWEST_TORCH

    def allowed(self, total: int) -> int | None:
        """Bytes the allocator may reserve of a device of ``total``; ``None``: all it can get."""
        return int(self.memory_fraction * float(total)) if self.memory_fraction < 1.0 else None


def parse_alloc_conf(text: str, *, torch: Version = NEWEST_TORCH) -> AllocatorSettings:
    """Read the value of ``PYTORCH_ALLOC_CONF`` or ``PYTORCH_CUDA_ALLOC_CONF``.

    Args:
        text: ``key:value`` pairs set apart by commas, such as
            ``expandable_segments:True,roundup_power2_divisions:[64:4,256:8,>:0]``. Empty: defaults.
        torch: version (major, minor) that will read it.

    Raises:
        UsageError: a key is unknown to that version, or a value is not one it takes.
    """
    given: dict[str, Value] = {}
    for key, value in pairs(text):
        _check_key(key, torch)
        given[key] = value
    settings = AllocatorSettings(torch=torch)
    for key, read in _READERS.items():  # the segment size first: the others are checked against it
        if key in given:
            settings = read(settings, given[key])
    return settings


def without_fraction(text: str) -> str:
    """The same settings without the part of the device that may be reserved.

    A run that shall tell what it needs must not be refused memory.
    """
    kept = (one for one in each(text) if not one.startswith(_FRACTION))
    return ",".join(kept)


def round_size(size: int, divisions: tuple[int, ...]) -> int:
    """Round a request to the size of the block that serves it.

    Args:
        size: bytes requested, more than zero.
        divisions: see ``AllocatorSettings.divisions``.

    Source: ``DeviceCachingAllocator::round_size`` and ``roundup_power2_next_division``.
    """
    if size < MIN_BLOCK:
        return MIN_BLOCK
    interval = min(max(size.bit_length() - 1 - 20, 0), DIVISION_INTERVALS - 1)
    steps = divisions[interval]
    if steps <= 1 or size <= MIN_BLOCK * steps:
        return (size + MIN_BLOCK - 1) & -MIN_BLOCK
    if size & (size - 1) == 0:
        return size
    step = (1 << (size.bit_length() - 1)) >> (steps.bit_length() - 1)
    return (size + step - 1) & -step


def _check_key(key: str, torch: Version) -> None:
    if key in SINCE_2_13 and torch < (2, 12):
        version = ".".join(map(str, torch))
        raise UsageError(f"PyTorch {version} does not know {key}: leave it out, or name 2.13.")
    if key not in _READERS and key not in NO_SIZE_CHANGE:
        known = sorted(NO_SIZE_CHANGE.union(_READERS))
        close = difflib.get_close_matches(key, known, n=1, cutoff=0.0)[0]
        listed = ", ".join(known)
        raise UsageError(f"Unknown allocator setting {key!r}: did you mean {close}? ({listed})")


def _large_segment(settings: AllocatorSettings, value: Value) -> AllocatorSettings:
    size = whole("large_segment_size_mb", value) * MIB
    if size <= MIN_OWN_SEGMENT:
        raise UsageError("large_segment_size_mb must be more than 10: write 11 or more.")
    return replace(settings, large_segment=size)


def _at_least_segment(settings: AllocatorSettings, key: str, value: Value) -> int:
    size = whole(key, value) * MIB
    if size < settings.large_segment:
        least = settings.large_segment // MIB
        raise UsageError(f"{key} is too small: write {least} (the large segment) or more.")
    return min(size, UNLIMITED // MIB * MIB)


def _max_split(settings: AllocatorSettings, value: Value) -> AllocatorSettings:
    return replace(settings, max_split=_at_least_segment(settings, "max_split_size_mb", value))


def _max_non_split_rounding(settings: AllocatorSettings, value: Value) -> AllocatorSettings:
    size = _at_least_segment(settings, "max_non_split_rounding_mb", value)
    return replace(settings, max_non_split_rounding=size)


def _gc_threshold(settings: AllocatorSettings, value: Value) -> AllocatorSettings:
    threshold = fraction("garbage_collection_threshold", value)
    if not 0.0 < threshold < 1.0:
        raise UsageError("garbage_collection_threshold must lie between 0 and 1: write 0.8.")
    return replace(settings, gc_threshold=threshold)


def _memory_fraction(settings: AllocatorSettings, value: Value) -> AllocatorSettings:
    part = fraction("per_process_memory_fraction", value)
    # PyTorch takes 0 as well, with which nothing can be allocated.
    if not 0.0 < part <= 1.0:
        raise UsageError("per_process_memory_fraction must lie above 0, and at most 1: write 0.5.")
    return replace(settings, memory_fraction=part)


def _expandable(settings: AllocatorSettings, value: Value) -> AllocatorSettings:
    return replace(settings, expandable=boolean("expandable_segments", value))


def _backend(settings: AllocatorSettings, value: Value) -> AllocatorSettings:
    if value != "native":
        raise UsageError(f"backend:{value} is not modeled: write backend:native, or leave it out.")
    return settings


def _divisions(settings: AllocatorSettings, value: Value) -> AllocatorSettings:
    key = "roundup_power2_divisions"
    if isinstance(value, str):
        steps = power_of_two(key, value)
        return replace(settings, divisions=(steps,) * DIVISION_INTERVALS)
    intervals = [0] * DIVISION_INTERVALS
    last, first = 0, True
    for name, count in value:
        steps = 0 if count == "0" else power_of_two(key, count)
        if name == ">":
            start = last if settings.torch < _DIVISIONS_FROM_NEXT else last + 1
            intervals[start:] = [steps] * len(intervals[start:])
            continue
        last = min(power_of_two(key, name).bit_length() - 1, DIVISION_INTERVALS - 1)
        if first:
            intervals[:last] = [steps] * last
            first = False
        intervals[last] = steps
    return replace(settings, divisions=tuple(intervals))


_READERS: Final[dict[str, Callable[[AllocatorSettings, Value], AllocatorSettings]]] = {
    "large_segment_size_mb": _large_segment,
    "max_split_size_mb": _max_split,
    "max_non_split_rounding_mb": _max_non_split_rounding,
    "garbage_collection_threshold": _gc_threshold,
    "roundup_power2_divisions": _divisions,
    "expandable_segments": _expandable,
    "per_process_memory_fraction": _memory_fraction,
    "backend": _backend,
}

SINCE_2_13: Final = frozenset(
    {
        "pinned_free_catch_all",
        "pinned_max_cached_size_mb",
        "pinned_max_round_threshold_mb",
        "throw_on_cudamalloc_oom",
    }
)
"""Keys 2.11 refuses and 2.13 takes; 2.12 was not looked at and is given the benefit of the doubt.

``throw_on_cudamalloc_oom`` fails earlier, and at the same size.
"""

NO_SIZE_CHANGE: Final = SINCE_2_13 | {
    "graph_capture_record_stream_reuse",
    "pinned_num_register_threads",
    "pinned_reserve_segment_size_mb",
    "pinned_use_background_threads",
    "pinned_use_cuda_host_register",
    "pinned_use_hip_host_register",
    "release_lock_on_cudamalloc",
    "release_lock_on_hipmalloc",
}
"""Keys that change nothing of what a training step holds on the device."""
