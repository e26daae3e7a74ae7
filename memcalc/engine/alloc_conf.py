"""``PYTORCH_ALLOC_CONF``: its keys, and its values as PyTorch checks them.

PyTorch reads the settings that it runs under; here they are checked before anything starts, and
those parts are read that say how much of a card may be reserved. Source: ``c10/core/
AllocatorConfig.h`` and ``c10/cuda/CUDAAllocatorConfig.h`` of torch 2.11 and 2.13; each check was
seen in the error of the real parser of those versions.
"""

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import msgspec

from memcalc.errors import UsageError
from memcalc.version import NEWEST_TORCH

Value = str | tuple[tuple[str, str], ...]
"""One word, or the pairs of a list such as ``[64:4,>:8]``."""
Version = tuple[int, int]

_EXAMPLE = "write key:value pairs set apart by commas, such as expandable_segments:True"
_PAIR = re.compile(r"([^:,\[\]]+):(?:([^:,\[\]]+)|\[([^\[\]]*)\])(?:,|$)")
_BACKEND: Final = "backend"
_SEGMENT: Final = "large_segment_size_mb"
_FRACTION: Final = "per_process_memory_fraction"
_THRESHOLD: Final = "garbage_collection_threshold"
_LARGE_SEGMENT: Final = 20
"""MiB that the large pool takes for a request below 10 MiB, unless told otherwise."""

VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""Environment variables that hold these settings; the newer one wins."""
_UNCACHED = "PYTORCH_NO_CUDA_MEMORY_CACHING"


class AllocatorSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the caching allocator, checked."""

    text: str = ""
    """As PyTorch reads them."""
    gc_threshold: float = 0.0
    """Part of the allowed memory above which old cached blocks are given back; 0: never."""
    memory_fraction: float = 1.0
    """Part of the device's memory the process may reserve."""

    def allowed(self, total: int) -> int | None:
        """Return the bytes that may be reserved of a device of ``total``; ``None``: no limit."""
        return int(self.memory_fraction * float(total)) if self.memory_fraction < 1.0 else None


def check_environment(environ: Mapping[str, str]) -> None:
    """Check that a program started with these variables would use PyTorch's caching allocator.

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
    """Check the value of ``PYTORCH_ALLOC_CONF`` or ``PYTORCH_CUDA_ALLOC_CONF``.

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
    _check_backend(given)
    _check_sizes(given)
    for key, check in _CHECKS.items():
        if key in given:
            check(key, given[key])
    return AllocatorSettings(
        text=text,
        gc_threshold=_share(_THRESHOLD, given[_THRESHOLD]) if _THRESHOLD in given else 0.0,
        memory_fraction=_share(_FRACTION, given.get(_FRACTION, "1")),
    )


def without_fraction(text: str) -> str:
    """Leave out the part of the device that may be reserved.

    A run that shall tell what it needs must not be refused memory.
    """
    found = (match[0].rstrip(",") for match in _PAIR.finditer("".join(text.split())))
    return ",".join(one for one in found if not one.startswith(_FRACTION))


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


def _check_backend(given: Mapping[str, Value]) -> None:
    if (backend := given.get(_BACKEND, "native")) != "native":
        raise UsageError(
            f"backend:{backend} is not supported: write backend:native, or leave it out."
        )


def _check_key(key: str, torch: Version) -> None:
    if key in SINCE_2_13 and torch < (2, 12):
        version = ".".join(map(str, torch))
        raise UsageError(f"PyTorch {version} does not know {key}: leave it out, or name 2.13.")
    known = sorted({*NO_SIZE_CHANGE, *_SIZES, *_CHECKS, _THRESHOLD, _FRACTION, _BACKEND})
    if key not in known:
        close = difflib.get_close_matches(key, known, n=1, cutoff=0.0)[0]
        listed = ", ".join(known)
        raise UsageError(f"Unknown allocator setting {key!r}: did you mean {close}? ({listed})")


def _check_sizes(given: Mapping[str, Value]) -> None:
    """Check whole numbers of MiB; PyTorch cuts ``200.5`` to 200, and takes -5 for a huge number."""
    segment = _LARGE_SEGMENT
    for key in _SIZES:
        value = given.get(key)
        if value is None:
            continue
        if not (isinstance(value, str) and value.isascii() and value.isdigit()):
            raise UsageError(f"{key} takes a whole number of MiB: write {key}:128.")
        if key == _SEGMENT:
            segment = int(value)
            if segment <= 10:
                raise UsageError(f"{key} must be more than 10: write 11 or more.")
        elif int(value) < segment:
            raise UsageError(f"{key} is too small: write {segment} (the large segment) or more.")


def _share(key: str, value: Value) -> float:
    """Read a number such as ``0.8``; PyTorch takes a memory fraction of 0, which holds nothing."""
    if not (isinstance(value, str) and re.fullmatch(r"\d*\.?\d+|\d+\.", value, re.ASCII)):
        raise UsageError(f"{key} takes a number from 0 to 1: write {key}:0.8.")
    share = float(value)
    if not 0.0 < share <= 1.0 or (share == 1.0 and key != _FRACTION):
        whole = "above 0, and at most 1" if key == _FRACTION else "between 0 and 1"
        raise UsageError(f"{key} must lie {whole}: write 0.8.")
    return share


def _check_boolean(key: str, value: Value) -> None:
    if value not in ("True", "False"):
        raise UsageError(f"{key} takes True or False, spelled so: write {key}:True.")


def _check_divisions(key: str, value: Value) -> None:
    for name, count in (("1", value),) if isinstance(value, str) else value:
        for number in (name, count):
            if number != ">" and not (number == "0" and not isinstance(value, str)):
                _check_power_of_two(key, number)


def _check_power_of_two(key: str, text: str) -> None:
    number = int(text) if text.isascii() and text.isdigit() else 0
    if not number or number & (number - 1):
        raise UsageError(
            f"{key} takes powers of two, not {text!r}: write {key}:4 or {key}:[64:4,>:8]."
        )


_SIZES: Final = (_SEGMENT, "max_split_size_mb", "max_non_split_rounding_mb")
"""The size of a segment comes first: the others are checked against it."""
_CHECKS: Final[dict[str, Callable[[str, Value], None]]] = {
    "roundup_power2_divisions": _check_divisions,
    "expandable_segments": _check_boolean,
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
