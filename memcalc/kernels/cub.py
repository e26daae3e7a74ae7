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
"""So many keys of a width are sorted by one block; of narrow ones at least so many."""
_SORT_TILES = {
    7: {(4, 4): 11776, (4, 8): 2816, (8, 8): 2816},
    8: {(4, 4): 6528, (4, 8): 3072, (8, 8): 3840},
    9: {(4, 4): 6528, (4, 8): 5376, (8, 8): 4608, (2, 8): 5632, (1, 8): 3456},
}
"""By CUB's generation of tuning, then widths of key and value."""
_KEY_TILES = {7: 2816, 8: 3840, 9: 5760}
"""Of 64-bit keys without values, by CUB's generation of tuning."""
_SCANS = {2: (7680, 16), 4: (1920, 8), 8: (896, 16)}
"""By width of an element: elements in a tile, and bytes of its look-back state."""
SCANNED = frozenset(_SCANS)
"""Widths whose running sums are known."""
_UNIQUE_TILES = {7: {4: 704, 8: 320}, 8: {4: 2816, 8: 1344}, 9: {4: 7168, 8: 4928}}
"""By CUB's generation of tuning, then width of a key."""
_UNIQUE_STATE = 16
_SCAN_BY_KEY_TILES = {7: 1536, 8: 1536, 9: 1664}
"""Of 64-bit keys and sums."""
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
    if count <= _SINGLE_TILE[key_bytes]:
        return 1
    passes = ceil_div(bits, 8)
    # A single pass goes straight from the input to the output.
    buffers = round_up(count * key_bytes, _ALIGNED) + round_up(count * value_bytes, _ALIGNED)
    if not knows_pairs(key_bytes, value_bytes, target):
        return buffers
    tile = _SORT_TILES[target.architecture.cub][key_bytes, value_bytes]
    bins, look_back = passes * _RADIX * 8, ceil_div(count, tile) * _RADIX * 4
    return (buffers if passes > 1 else 0) + bins + look_back + _LEAST


def knows_pairs(key_bytes: int, value_bytes: int, target: Target) -> bool:
    """``sort_pairs`` says all that is taken.

    Before CUB's newest tuning, narrow keys are sorted in an older way, whose counters depend on
    how many blocks of a kernel fit on a multiprocessor: 1 to 2 MB.
    """
    return (key_bytes, value_bytes) in _SORT_TILES[target.architecture.cub]


def sort_keys(count: int, target: Target) -> int:
    """Radix sort of more 64-bit keys than a block takes, by eight bits at most."""
    tile = _KEY_TILES[target.architecture.cub]
    return _RADIX * 8 + ceil_div(count, tile) * _RADIX * 4 + _LEAST


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
