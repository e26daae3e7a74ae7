"""Checks ``PYTORCH_ALLOC_CONF`` with the rules of PyTorch's own parser.

PyTorch itself reads the settings when it starts. Here they are checked before, and the limits of
reserved memory are read. Source: ``c10/core/AllocatorConfig.h`` and
``c10/cuda/CUDAAllocatorConfig.h`` of torch 2.11 and 2.13; each check was seen in the error of the
real parser of those versions.
"""

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from memcalc.errors import UsageError
from memcalc.version import NEWEST_TORCH

Version = tuple[int, int]

_EXAMPLE = "write key:value pairs set apart by commas, such as expandable_segments:True"
_PAIR = re.compile(r"([^:,\[\]]+):([^:,\[\]]+|\[[^\[\]]*\])(?:,|$)")
_BACKEND: Final = "backend"
_SEGMENT: Final = "large_segment_size_mb"
_FRACTION: Final = "per_process_memory_fraction"
_THRESHOLD: Final = "garbage_collection_threshold"
_LARGE_SEGMENT: Final = 20
"""MiB that the large pool takes by default for a request below 10 MiB."""
_SIZES: Final = (_SEGMENT, "max_split_size_mb", "max_non_split_rounding_mb")
"""The size of a segment comes first: the others are checked against it."""
_POWER = "|".join(str(1 << bits) for bits in range(64))
_FORMS: Final[dict[str, tuple[str, str, str]]] = {
    # PyTorch cuts 200.5 to 200, and takes -5 for a huge number.
    **dict.fromkeys(_SIZES, (r"\d+", "a whole number of MiB", "128")),
    _THRESHOLD: (r"0*\.\d*[1-9]\d*", "a number between 0 and 1", "0.8"),
    # PyTorch takes 0, which holds nothing.
    _FRACTION: (r"0*\.\d*[1-9]\d*|0*1(\.0*)?", "a number above 0, and at most 1", "0.8"),
    "expandable_segments": ("True|False", "True or False, spelled so", "True"),
    "roundup_power2_divisions": (
        rf"{_POWER}|\[(({_POWER}|>):({_POWER}|0)(,|(?=\])))*\]",
        "powers of two, alone or in a list such as [64:4,>:8]",
        "4",
    ),
}
"""Keys whose values change sizes: a pattern of the values, the same in words, and an example."""

VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""Environment variables that hold these settings; the newer one wins."""
_UNCACHED = "PYTORCH_NO_CUDA_MEMORY_CACHING"


class AllocatorSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Valid settings of the caching allocator."""

    text: str = ""
    """The text that PyTorch reads."""
    gc_threshold: float = 0.0
    """Share of the allowed memory above which old cached blocks are freed; 0 means never."""
    memory_fraction: float = 1.0
    """Share of the device's memory that the process may reserve."""

    def reservable_bytes(self, total: int) -> int | None:
        """Return the bytes that a process may reserve of ``total``, or None without a limit."""
        return int(self.memory_fraction * float(total)) if self.memory_fraction < 1.0 else None


def check_environment(environ: Mapping[str, str]) -> None:
    """Check that a program with these variables uses PyTorch's caching allocator.

    Raises:
        UsageError: the variables turn it off or select another backend.
    """
    if environ.get(_UNCACHED):
        raise UsageError(
            f"{_UNCACHED} turns off the caching allocator, whose memory memcalc reads: unset it."
        )
    conf = next((environ[name] for name in VARIABLES if environ.get(name)), "")
    _check_backend(dict(_pairs(conf)))


def parse_alloc_conf(text: str, *, torch: Version = NEWEST_TORCH) -> AllocatorSettings:
    """Parse the value of ``PYTORCH_ALLOC_CONF`` or ``PYTORCH_CUDA_ALLOC_CONF``.

    Args:
        text: ``key:value`` pairs separated by commas, such as
            ``expandable_segments:True,roundup_power2_divisions:[64:4,256:8,>:0]``. Empty text gives
            the defaults.
        torch: PyTorch's version (major, minor).

    Raises:
        UsageError: a key is unknown to that version, or a value is invalid.
    """
    given: dict[str, str] = {}
    for key, value in _pairs(text):
        _check_key(key, torch)
        given[key] = value
    _check_backend(given)
    for key, (form, wanted, example) in _FORMS.items():
        if key in given and not re.fullmatch(form, given[key], re.ASCII):
            raise UsageError(f"{key} takes {wanted}: write {key}:{example}.")
    _check_sizes({key: int(value) for key, value in given.items() if key in _SIZES})
    return AllocatorSettings(
        text=text,
        gc_threshold=float(given.get(_THRESHOLD, 0)),
        memory_fraction=float(given.get(_FRACTION, 1)),
    )


def without_fraction(text: str) -> str:
    """Return the settings without ``per_process_memory_fraction``.

    A run that finds out what a program needs must not be refused memory.
    """
    found = (match[0].rstrip(",") for match in _PAIR.finditer("".join(text.split())))
    return ",".join(one for one in found if not one.startswith(_FRACTION))


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    """Yield the keys and values of a configuration; white space is ignored."""
    packed = "".join(text.split())
    at = 0
    while at < len(packed):
        match = _PAIR.match(packed, at)
        if match is None:
            raise UsageError(f"Cannot read allocator settings at {packed[at:]!r}: {_EXAMPLE}.")
        yield match[1], match[2]
        at = match.end()


def _check_backend(given: Mapping[str, str]) -> None:
    if (backend := given.get(_BACKEND, "native")) != "native":
        raise UsageError(
            f"backend:{backend} is not supported: write backend:native, or leave it out."
        )


def _check_key(key: str, torch: Version) -> None:
    if key in SINCE_2_13 and torch < (2, 12):
        version = ".".join(map(str, torch))
        raise UsageError(f"PyTorch {version} does not know {key}: leave it out, or name 2.13.")
    known = sorted({*NO_SIZE_CHANGE, *_FORMS, _BACKEND})
    if key not in known:
        close = difflib.get_close_matches(key, known, n=1, cutoff=0.0)[0]
        listed = ", ".join(known)
        raise UsageError(f"Unknown allocator setting {key!r}: did you mean {close}? ({listed})")


def _check_sizes(sizes: Mapping[str, int]) -> None:
    """Check that all sizes, in MiB, are at least the size of a large segment."""
    segment = sizes.get(_SEGMENT, _LARGE_SEGMENT)
    if segment <= 10:
        raise UsageError(f"{_SEGMENT} must be more than 10: write 11 or more.")
    for key, size in sizes.items():
        if size < segment:
            raise UsageError(f"{key} is too small: write {segment} (the large segment) or more.")


SINCE_2_13: Final = frozenset(
    {
        "pinned_free_catch_all",
        "pinned_max_cached_size_mb",
        "pinned_max_round_threshold_mb",
        "throw_on_cudamalloc_oom",
    }
)
"""Keys that 2.11 refuses and 2.13 accepts; 2.12 was not checked and is assumed to accept them.

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
"""Keys that do not change the memory of a training step on the device."""
