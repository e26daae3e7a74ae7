"""Temporary storage of CUB's device-wide algorithms, as PyTorch asks for it.

Every piece is aligned to 256 bytes, and 255 more let the whole begin at such an address. Constants
are tile sizes of CUB's tuning policies, read off what PyTorch asked for 20,000 to 30,000,000
elements on compute capabilities 7.5, 8.0, 8.6, 9.0 and 10.0 (2.11 and 2.13 with CUDA 13.0).
"""

from __future__ import annotations

from memcalc.kernels.scratch import ceil_div, round_up
from memcalc.kernels.target import Target

_ALIGNED = 256
_LEAST = 511
"""What an algorithm asks for beside its pieces."""
_RADIX = 256
_SINGLE_TILE = {1: 4096, 2: 4096, 4: 4864, 8: 2304}
"""So many keys or pairs are sorted by one block, by the wider of both; of narrow ones at least so
many."""
_SORT_TILES = {
    7: {(4, 4): 11776, (4, 8): 2816, (8, 8): 2816},
    8: {(4, 4): 6528, (4, 8): 3072, (8, 8): 3840},
    9: {(4, 4): 6528, (4, 8): 5376, (8, 8): 4608, (2, 8): 5632, (1, 8): 3456},
}
"""By CUB's generation of tuning, then widths of key and value."""
_KEY_TILES = {
    7: {(8, False): 2816, (8, True): 2816, (4, False): 5888, (4, True): 5888},
    8: {(8, False): 3840, (8, True): 3840, (4, False): 8064, (4, True): 8064},
    9: {(8, False): 5760, (8, True): 5760, (4, False): 7296, (4, True): 6912},
}
"""Without values, by CUB's generation of tuning, then width of a key and whether it is real."""
_SCANS = {2: (7680, 16), 4: (1920, 8), 8: (896, 16)}
"""By width of an element: elements in a tile, and bytes of its look-back state."""
SCANNED = frozenset(_SCANS)
"""Widths whose running sums are known."""
_UNIQUE_TILES = {7: {4: 704, 8: 320}, 8: {4: 2816, 8: 1344}, 9: {4: 7168, 8: 4928}}
"""By CUB's generation of tuning, then width of a key."""
_UNIQUE_STATE = 16
_SCAN_BY_KEY_TILES = {7: 1536, 8: 1536, 9: 1664}
"""Of 64-bit keys and sums."""
_SELECT_TILES = {7: 640, 8: 2304, 9: 4224, 10: 3520}
_DISTINCT_TILES = {
    7: {8: 640, 4: 1280, 2: 1280, 1: 1280},
    8: {8: 1920, 4: 4608, 2: 8064, 1: 19840},
    9: {8: 4224, 4: 6528, 2: 5632, 1: 5632},
    10: {8: 4224, 4: 5760, 2: 5632, 1: 8448},
}
_DISTINCT_HALF = 1280
_FLAG_TILES = {7: 1920, 8: 3840, 9: 3072, 10: 3072}
_SLICE_TILES = {7: 2304, 8: 3840, 9: 4032, 10: 4480}
"""By ``Architecture.cub_choice``; of distinct elements by width, those of 16 real bits apart."""
_CHOICE_STATE = 8
_RUN_TILE, _RUN_STATE, _RUN_WARP = 768, 16, 16
_COUNTED_AT_ONCE = 4096
_BLOCKS = 2 * 5
"""Partial counts for each multiprocessor: five for each block that fits there. How many fit only a
GPU can tell; two are taken, which is what the stand-in driver says: a few kilobytes hang on it."""
_MERGE_TILE = 2048
"""Of 64-bit keys, on every capability."""
_OFFSET = 4
_WARP = 32
"""States before the first tile's."""


def sort_pairs(count: int, key_bytes: int, value_bytes: int, bits: int, target: Target) -> int:
    """Radix sort of (key, value) pairs by ``bits`` bits.

    Alternate buffers where there are several passes, 64-bit bin offsets for each pass of eight
    bits, 32-bit look-back counters for each tile.
    """
    if count <= _SINGLE_TILE[max(key_bytes, value_bytes)]:
        return 1
    passes = ceil_div(bits, 8)
    # A single pass goes straight from the input to the output.
    buffers = round_up(count * key_bytes, _ALIGNED) + round_up(count * value_bytes, _ALIGNED)
    if not knows_pairs(count, key_bytes, value_bytes, target):
        return buffers
    tile = _SORT_TILES[target.architecture.cub][key_bytes, value_bytes]
    bins, look_back = passes * _RADIX * 8, ceil_div(count, tile) * _RADIX * 4
    return (buffers if passes > 1 else 0) + bins + look_back + _LEAST


def knows_pairs(count: int, key_bytes: int, value_bytes: int, target: Target) -> bool:
    """``sort_pairs`` says all that is taken.

    Before CUB's newest tuning, narrow keys are sorted in an older way, whose counters depend on
    how many blocks of a kernel fit on a multiprocessor: 1 to 2 MB.
    """
    known = (key_bytes, value_bytes) in _SORT_TILES[target.architecture.cub]
    return known or count <= _SINGLE_TILE[max(key_bytes, value_bytes)]


def sort_keys(
    count: int, target: Target, key_bytes: int = 8, bits: int = 8, *, real: bool = False
) -> int:
    """Radix sort without values by ``bits`` bits."""
    if count <= _SINGLE_TILE[key_bytes]:
        return 1
    passes = ceil_div(bits, 8)
    buffer = round_up(count * key_bytes, _ALIGNED) if passes > 1 else 0
    if not knows_keys(count, key_bytes, real, target):
        return buffer
    tile = _KEY_TILES[target.architecture.cub][key_bytes, real]
    look_back = ceil_div(count, tile) * _RADIX * 4
    return buffer + passes * _RADIX * 8 + look_back + _LEAST


def knows_keys(count: int, key_bytes: int, real: bool, target: Target) -> bool:
    """``sort_keys`` says all that is taken; of narrow keys see ``knows_pairs``."""
    known = (key_bytes, real) in _KEY_TILES[target.architecture.cub]
    return known or count <= _SINGLE_TILE[key_bytes]


def count_nonzero(count: int, target: Target) -> int:
    """How many are not zero."""
    if count <= _COUNTED_AT_ONCE:
        return 1
    partial = target.multiprocessors * _BLOCKS * _OFFSET
    return round_up(partial, _ALIGNED) + _ALIGNED - 1


def select(count: int, target: Target) -> int:
    """Which are not zero."""
    return _states(count, _SELECT_TILES[target.architecture.cub_choice], _CHOICE_STATE)


def distinct(count: int, element_bytes: int, target: Target, *, real: bool) -> int:
    """The first of each run of equal elements."""
    tile = _DISTINCT_TILES[target.architecture.cub_choice][element_bytes]
    return _states(count, _DISTINCT_HALF if real and element_bytes == 2 else tile, _CHOICE_STATE)


def run_lengths(count: int) -> int:
    """The same, and how long each run is."""
    states = (ceil_div(count, _RUN_TILE) + _RUN_WARP) * _RUN_STATE
    return round_up(states, _ALIGNED) + _LEAST


def sum_flags(count: int, target: Target) -> int:
    """A running sum in 64 bit of flags that begin a run."""
    return _states(count, _FLAG_TILES[target.architecture.cub_choice], _CHOICE_STATE)


def scan_by_slice(count: int, target: Target) -> int:
    """A running sum in 32 bit that begins anew with each slice."""
    return _states(count, _SLICE_TILES[target.architecture.cub_choice], _UNIQUE_STATE)


def segmented_sort_pairs(count: int, key_bytes: int, value_bytes: int) -> int:
    """Radix sort of pairs within each of several segments: alternate buffers."""
    keys, values = (round_up(count * size, _ALIGNED) for size in (key_bytes, value_bytes))
    return keys + values + _ALIGNED - 1


def scan(count: int, element_bytes: int) -> int:
    """A running sum."""
    return _states(count, *_SCANS[element_bytes])


def scan_by_key(count: int, target: Target) -> int:
    """A running sum in 64 bit that begins anew with each 64-bit key."""
    return _states(count, _SCAN_BY_KEY_TILES[target.architecture.cub], _UNIQUE_STATE)


def unique_by_key(count: int, key_bytes: int, target: Target) -> int:
    """The first of each run of equal keys, with its value of the same width."""
    return _states(count, _UNIQUE_TILES[target.architecture.cub][key_bytes], _UNIQUE_STATE)


def merge_sort_pairs(count: int) -> int:
    """A sort of 64-bit keys and values by comparison, as Thrust asks CUB for one.

    Room for both, and where the pieces of each tile begin.
    """
    parts = (1 + ceil_div(count, _MERGE_TILE)) * _OFFSET
    return 2 * round_up(count * 8, _ALIGNED) + round_up(parts, _ALIGNED) + _ALIGNED - 1


def thrust_unique(count: int, target: Target) -> int:
    """``unique_by_key`` of 64-bit keys and values as Thrust asks for it: with 32-bit offsets.

    The count that is left lies beside what CUB takes.
    """
    tiles = ceil_div(count, _UNIQUE_TILES[target.architecture.cub][8]) + _WARP
    return round_up(tiles * 2 * _OFFSET, _ALIGNED) + 2 * _LEAST + 1


def _states(count: int, tile: int, state: int) -> int:
    return round_up((ceil_div(count, tile) + _WARP) * state, _ALIGNED) + _LEAST
