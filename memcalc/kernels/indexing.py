"""What sorting, embedding and index kernels take beside their outputs.

Sources: aten/src/ATen/native/cuda/ Embedding.cu, EmbeddingBackwardKernel.cu
(``embedding_backward_cuda_kernel``, NROWS_PER_THREAD = 10), Indexing.cu
(``index_put_with_sort_kernel``), Sort.cpp and SortStable.cu, PyTorch 2.11 and 2.13.
"""

from __future__ import annotations

import math
from typing import Any

from memcalc.kernels import cub
from memcalc.kernels.scratch import Allocations, later, nested
from memcalc.kernels.target import Target

_ROWS_PER_THREAD = 10
_SORTED_ABOVE = 3072
_FLOAT = 4
INDEX = 8
_BITS_OF_ROWS = (2, 13)
"""From this version on (or the one before, which was not looked at) an embedding's indices are
sorted by the bits its rows need; before, by all."""
_ADDED_AT_ONCE_SINCE = (2, 11)
_BLOCKS_AT_ONCE, _PARTS_OF_LONG = 4, 4
"""Rows for each multiprocessor below which they are few, and parts of a row above which they are
long: sums of parts are added by one kernel then. Found with PyTorch's CUDA code of 2.11 to 2.14 on
three GPUs."""
_FIRST_OF_PARTS = 13
SORTED_IN_BLOCKS = 4096
"""Up to so many elements along the dimension."""
_LONG = 1_000_000
"""From so many on, rows are sorted one by one."""
_SEGMENTED_FROM = 128
"""So many rows are sorted as segments."""
_MOST = 2**31 - 1
"""Elements that are sorted together."""


def index_put_sorted(
    count: int, indices: int, rows: int, copied: tuple[int, ...], target: Target
) -> Allocations:
    """Scratch of ``index_put_(accumulate=True)``, the gradient of indexing by tensors.

    Args:
        count: N, positions written to.
        indices: tensors that name them together.
        rows: places there are.
        copied: bytes of values that do not lie in rows, and of the tensor that does not.
        target: the GPU.

    Returns:
        Allocations: the positions as single numbers (each tensor wrapped, then multiplied), values
        in rows, sorted positions, order and its numbers.
    """
    if not count:
        return ()
    size = count * INDEX
    words: list[int] = [size, size, ~0]
    for number in range(1, indices):
        words += (size, size, ~(2 * number), ~(2 * number + 1))
    return (*words, *later(put_sorted(count, rows, copied, target), 2 * indices), ~1)


def put_sorted(count: int, rows: int, copied: tuple[int, ...], target: Target) -> Allocations:
    """The part of ``index_put_sorted`` that finds the positions as single numbers."""
    if not count:
        return ()
    size, bits = count * INDEX, max(rows - 1, 1).bit_length()
    return nested(*copied, size, size, size, cub.sort_pairs(count, INDEX, INDEX, bits, target))


def is_sort_known(target: Target, elements: int, along: int, key_bytes: int, *_: Any) -> bool:
    """``sort`` says all that is taken."""
    segmented = along < _LONG and elements >= _SEGMENTED_FROM * along
    known = cub.knows_pairs(along, key_bytes, INDEX, target)
    return along <= SORTED_IN_BLOCKS or segmented or known


def sort(elements: int, along: int, key_bytes: int, in_rows: bool, target: Target) -> Allocations:
    """Scratch of a sort, after values and indices are allocated.

    Source: Sort.cpp and SortStable.cu, ``launch_stable_sort_kernel`` (2.13).

    Args:
        elements: of the tensor.
        along: elements along the dimension that is sorted.
        key_bytes: of an element.
        in_rows: the dimension lies innermost, without gaps.
        target: the GPU.

    Returns:
        Allocations: numbers of the elements; rows of more than 4096 elements are sorted one by
        one where they are very long or there is one, all together with the row as a second key up
        to 127 of them, and as segments from there on. What does not lie in rows is copied first.
    """
    if along <= SORTED_IN_BLOCKS:
        return (along * INDEX, ~0) if along else ()
    rows = elements // along
    count = min(elements, _MOST // along * along)
    if rows == 1 or along >= _LONG:
        taken = nested(
            along * INDEX, cub.sort_pairs(along, key_bytes, INDEX, key_bytes * 8, target)
        )
    elif rows < _SEGMENTED_FROM:
        pairs, bits = count * INDEX, key_bytes * 8
        by_value = cub.sort_pairs(count, key_bytes, INDEX, bits, target)
        taken = (pairs, pairs, count * key_bytes, by_value, ~3, ~2)
        taken += (cub.sort_keys(count, target), ~4, ~1, ~0)
    else:
        taken = nested(count * INDEX, cub.segmented_sort_pairs(count, key_bytes, INDEX))
    if in_rows:
        return taken
    copies = elements * key_bytes, elements * key_bytes, elements * INDEX
    return (*copies, *(word if word > 0 else word - 3 for word in taken), ~2, ~1, ~0)


_THREADS = 256
_REGISTERS = 40 * _THREADS
_REGISTERS_OF_MULTIPROCESSOR = 65536
_FEWEST, _MOST_OF_THREAD = 4, 64
"""Elements for each thread."""
_DIGITS = 256
_BY_BLOCKS = (
    *((20, 20000), (40, 10000), (80, 8000), (199, 5000), (799, 3000), (4000, 800)),
    (math.inf, 400),
)
"""Up to so many slices, those of so many elements are shared by several blocks."""


def radix_topk(slices: int, along: int, key_bytes: int, target: Target) -> Allocations:
    """Scratch of finding the largest of long slices, after values and indices are allocated.

    Source: TensorTopK.cu, ``mbtopk::launch``, ``should_use_multiblock`` and
    ``get_items_per_thread`` (2.13; as recorded with 2.15).

    Args:
        slices: rows, S.
        along: elements of each, L.
        key_bytes: of an element.
        target: the GPU.

    Returns:
        Allocations: the value found, the digits sought (twice 4 bytes, or 8), the counts of 256
        digits for each block and slice, and what each block has; empty for short slices, which a
        block takes by itself.
    """
    least = next(length for most, length in _BY_BLOCKS if slices <= most)
    if not slices or along < least:
        return ()
    at_once = target.multiprocessors * (_REGISTERS_OF_MULTIPROCESSOR // _REGISTERS) * _THREADS
    items = min(max(math.ceil(slices * along / at_once), _FEWEST), _MOST_OF_THREAD)
    blocks = slices * math.ceil(along / (items * _THREADS))
    sums = cub.scan_by_slice(blocks, target)
    sought = slices * 2 * 4
    wide = slices * 2 * max(key_bytes, 4)
    counts = blocks * _DIGITS * 2, slices * _DIGITS * 4
    return (
        *(slices * key_bytes, sought, wide, *counts, blocks * 4, blocks * 4),
        *(sums, ~7, sums, ~8, ~6, ~5, ~4, ~3, ~2, ~1, ~0),
    )


_LIKELIHOOD = 12 * math.log(0.9)
_NARROW = 32


def randperm(count: int, element_bytes: int, target: Target) -> Allocations:
    """Scratch of ``randperm``: the numbers in order are sorted by random keys.

    Source: Randperm.cu (2.13): keys have as many bits as make two alike unlikely. First a number
    tells whether the result's type holds as many, also where there are none.
    """
    if not count:
        return (element_bytes, ~0)
    bits = min(64, math.ceil(math.log2(count - (6 * count**2 + 1) / _LIKELIHOOD)))
    key = 4 if bits <= _NARROW else 8
    keys, temporary = count * key, cub.sort_pairs(count, key, element_bytes, bits, target)
    return (element_bytes, ~0, count * element_bytes, keys, keys, temporary, ~4, ~3, ~2, ~1)


def embedding_backward(
    indices: int,
    rows: int,
    width: int,
    index_bytes: int,
    target: Target,
    *,
    element_bytes: int = _FLOAT,
    bag: bool = False,
    by_frequency: bool = False,
) -> tuple[Allocations, Allocations]:
    """Scratch of a dense embedding gradient, before and after the gradient is allocated.

    Args:
        indices: N, tokens looked up.
        rows: V, size of the vocabulary.
        width: D, size of a vector.
        index_bytes: bytes per index.
        target: the GPU and PyTorch.
        element_bytes: bytes per number of the gradient.
        bag: of an ``EmbeddingBag``, which always sorts.
        by_frequency: the gradient is divided by how often each row was looked up.

    Returns:
        Two ``Allocations``, empty up to 3072 indices, where the kernel needs no sorting. Above:
        sorted indices before, and with ``by_frequency`` their counts; after, segment offsets and
        the fp32 sums of partial segments, ``4 D (N // 10 + min(N, V))`` bytes. Where rows are few
        and long these are added where they belong, in fp32: which one each is part of is enough.
    """
    if not indices or (indices <= _SORTED_ABOVE and not bag and not by_frequency):
        return (), ()
    size = indices * index_bytes
    bits = max(rows - 1, 1).bit_length() if target.torch >= _BITS_OF_ROWS else index_bytes * 8
    temporary = cub.sort_pairs(indices, index_bytes, index_bytes, bits, target)
    segments = min(indices, rows) * index_bytes
    partial = indices // _ROWS_PER_THREAD + min(indices, rows)
    before: Allocations = (size, size, size, temporary, ~3, ~2)
    unique = cub.unique_by_key(indices, index_bytes, target)
    scan = cub.scan(min(indices, rows), index_bytes)
    counted = 0
    if by_frequency:
        sums = cub.scan_by_key(indices, target)
        before += (size, sums, ~5, sums, ~6)
        counted = 3
    sums_of_parts: tuple[int, ...] = (partial * width * max(element_bytes, _FLOAT),)
    if not bag and _adds_at_once(min(indices, rows), partial, target):
        wide = (rows * width * _FLOAT,) if element_bytes < _FLOAT else ()
        sums_of_parts = (partial * index_bytes, *wide)
    freed = reversed(range(_FIRST_OF_PARTS, _FIRST_OF_PARTS + len(sums_of_parts)))
    after = (
        *(size, 8, size, unique, ~7, ~6),
        *(segments, segments, scan, ~10),
        *(8, partial * index_bytes, *sums_of_parts),
        *(~number for number in freed),
        *(~12, ~11, ~9, ~8, ~5, ~4),
    )
    moved = tuple(word if word > 0 else word - counted for word in after)
    return before, (*moved, *((~4,) if counted else ()), ~1, ~0)


def _adds_at_once(rows: int, parts: int, target: Target) -> bool:
    """One kernel adds the sums of parts where rows are few and long."""
    if target.torch < _ADDED_AT_ONCE_SINCE or target.ordered:
        return False
    few = rows < _BLOCKS_AT_ONCE * target.multiprocessors
    return few and parts > _PARTS_OF_LONG * rows
