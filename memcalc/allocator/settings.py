"""``PYTORCH_ALLOC_CONF``: its syntax, its checks, and the settings that change memory.

Source: ``c10/core/AllocatorConfig.h``, whose constants stand here too (``kSmallBuffer``,
``kMinBlockSize``, ``kSmallSize``, ``kMinLargeAlloc``, ``kRoundLarge``), and
``c10/cuda/CUDAAllocatorConfig.h`` of torch 2.11 and 2.13; each check below was seen in the error of
the real parser of those versions.
"""

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from memcalc.errors import UsageError
from memcalc.units import MIB
from memcalc.version import NEWEST_TORCH

MIN_BLOCK: Final = 512
"""Every request is rounded up to a multiple of this."""
SMALL_REQUEST: Final = 1 * MIB
"""A rounded request up to this size lives in the small pool."""
SMALL_SEGMENT: Final = 2 * MIB
"""What the small pool takes from the device at a time."""
LARGE_SEGMENT: Final = 20 * MIB
"""What the large pool takes for a request below ``MIN_OWN_SEGMENT``."""
MIN_OWN_SEGMENT: Final = 10 * MIB
"""A request of at least this size gets a segment of its own size..."""
SEGMENT_ROUNDING: Final = 2 * MIB
"""...rounded up to a multiple of this."""
DEVICE_PAGE: Final = 2 * MIB
"""Physical memory behind ``cudaMalloc`` and ``cuMemCreate`` comes in pages of this size.

Source: ``cuMemGetAllocationGranularity`` on data-center GPUs since Volta.
"""
UNLIMITED: Final = (1 << 64) - 1
"""``std::numeric_limits<size_t>::max()``: a limit that is not set."""
DIVISION_INTERVALS: Final = 16
"""Powers of two from 1 MiB to 32 GiB that ``roundup_power2_divisions`` can set apart."""


Value = str | tuple[tuple[str, str], ...]
"""One word, or the pairs of a list such as ``[64:4,>:8]``."""

_EXAMPLE = "write key:value pairs set apart by commas, such as expandable_segments:True"
_PAIR = re.compile(r"([^:,\[\]]+):(?:([^:,\[\]]+)|\[([^\[\]]*)\])(?:,|$)")


def _pairs(text: str) -> Iterator[tuple[str, Value]]:
    """Cut a configuration into its keys and values; white space counts for nothing."""
    packed = "".join(text.split())
    at = 0
    while at < len(packed):
        match = _PAIR.match(packed, at)
        if match is None:
            raise UsageError(f"Cannot read allocator settings at {packed[at:]!r}: {_EXAMPLE}.")
        key, word, listed = match.groups()
        entries = [entry.split(":") for entry in (listed or "").split(",") if listed]
        if any(len(entry) != 2 or not all(entry) for entry in entries):
            raise UsageError(f"Cannot read the list of {key}: write it as {key}:[64:4,256:8,>:0].")
        yield key, word if word is not None else tuple((name, count) for name, count in entries)
        at = match.end()


def _power_of_two(key: str, text: str) -> int:
    number = int(text) if text.isascii() and text.isdigit() else 0
    if number and number & (number - 1) == 0:
        return number
    raise UsageError(f"{key} takes powers of two, not {text!r}: write {key}:4 or {key}:[64:4,>:8].")


Version = tuple[int, int]
_SEGMENT: Final = "large_segment_size_mb"
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


VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""Environment variables that hold these settings; the newer one wins."""
_UNCACHED = "PYTORCH_NO_CUDA_MEMORY_CACHING"


def check_environment(environ: Mapping[str, str]) -> None:
    """See that a program started with these variables would use PyTorch's caching allocator.

    Raises:
        UsageError: it would not.
    """
    if environ.get(_UNCACHED):
        raise UsageError(
            f"{_UNCACHED} turns off the caching allocator, whose memory memcalc reads: unset it."
        )
    conf = next((environ[name] for name in VARIABLES if environ.get(name)), "")
    _check_backend(dict(_pairs(conf)))


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
    for key, value in _pairs(text):
        _check_key(key, torch)
        given[key] = value
    settings = AllocatorSettings(torch=torch)
    _check_backend(given)
    for key, (field, read) in _FIELDS.items():
        # The segment size comes first: the others are checked against it.
        if key in given:
            settings = replace(settings, **{field: read(settings, key, given[key])})
    return settings


def without_fraction(text: str) -> str:
    """The same settings without the part of the device that may be reserved.

    A run that shall tell what it needs must not be refused memory.
    """
    found = (match[0].rstrip(",") for match in _PAIR.finditer("".join(text.split())))
    return ",".join(one for one in found if not one.startswith(_FRACTION))


def round_size(size: int, divisions: tuple[int, ...]) -> int:
    """Round a request, of more than zero bytes, to the size of the block that serves it.

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


def _check_backend(given: Mapping[str, Value]) -> None:
    if (backend := given.get(_BACKEND, "native")) != "native":
        raise UsageError(
            f"backend:{backend} is not modeled: write backend:native, or leave it out."
        )


def _check_key(key: str, torch: Version) -> None:
    if key in SINCE_2_13 and torch < (2, 12):
        version = ".".join(map(str, torch))
        raise UsageError(f"PyTorch {version} does not know {key}: leave it out, or name 2.13.")
    known = sorted({*NO_SIZE_CHANGE, *_FIELDS, _BACKEND})
    if key not in known:
        close = difflib.get_close_matches(key, known, n=1, cutoff=0.0)[0]
        listed = ", ".join(known)
        raise UsageError(f"Unknown allocator setting {key!r}: did you mean {close}? ({listed})")


def _size(settings: AllocatorSettings, key: str, value: Value) -> int:
    """Read a whole number of MiB; PyTorch cuts ``200.5`` to 200, and takes -5 for a huge number."""
    if not (isinstance(value, str) and value.isascii() and value.isdigit()):
        raise UsageError(f"{key} takes a whole number of MiB: write {key}:128.")
    size, least = int(value) * MIB, settings.large_segment // MIB
    if key == _SEGMENT and size <= MIN_OWN_SEGMENT:
        raise UsageError(f"{key} must be more than 10: write 11 or more.")
    if key != _SEGMENT and size < settings.large_segment:
        raise UsageError(f"{key} is too small: write {least} (the large segment) or more.")
    return min(size, UNLIMITED // MIB * MIB)


def _share(settings: AllocatorSettings, key: str, value: Value) -> float:
    """Read a number such as ``0.8``; PyTorch takes a memory fraction of 0, which holds nothing."""
    if not (isinstance(value, str) and re.fullmatch(r"\d*\.?\d+|\d+\.", value, re.ASCII)):
        raise UsageError(f"{key} takes a number from 0 to 1: write {key}:0.8.")
    share = float(value)
    if not 0.0 < share <= 1.0 or (share == 1.0 and key != _FRACTION):
        whole = "above 0, and at most 1" if key == _FRACTION else "between 0 and 1"
        raise UsageError(f"{key} must lie {whole}: write 0.8.")
    return share


def _boolean(settings: AllocatorSettings, key: str, value: Value) -> bool:
    if value in ("True", "False"):
        return value == "True"
    raise UsageError(f"{key} takes True or False, spelled so: write {key}:True.")


def _divisions(settings: AllocatorSettings, key: str, value: Value) -> tuple[int, ...]:
    if isinstance(value, str):
        return (_power_of_two(key, value),) * DIVISION_INTERVALS
    intervals = [0] * DIVISION_INTERVALS
    last, first = 0, True
    for name, count in value:
        steps = 0 if count == "0" else _power_of_two(key, count)
        if name == ">":
            start = last if settings.torch < _DIVISIONS_FROM_NEXT else last + 1
            intervals[start:] = [steps] * len(intervals[start:])
            continue
        last = min(_power_of_two(key, name).bit_length() - 1, DIVISION_INTERVALS - 1)
        if first:
            intervals[:last] = [steps] * last
            first = False
        intervals[last] = steps
    return tuple(intervals)


_FIELDS: Final[dict[str, tuple[str, Callable[[AllocatorSettings, str, Value], Any]]]] = {
    _SEGMENT: ("large_segment", _size),
    "max_split_size_mb": ("max_split", _size),
    "max_non_split_rounding_mb": ("max_non_split_rounding", _size),
    "garbage_collection_threshold": ("gc_threshold", _share),
    "roundup_power2_divisions": ("divisions", _divisions),
    "expandable_segments": ("expandable", _boolean),
    _FRACTION: ("memory_fraction", _share),
}
"""The field that each key sets, and how its value is read."""
_BACKEND: Final = "backend"

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
