"""The staging buffer of a reduction that is split over several blocks of threads.

Every bias gradient is such a reduction. When one block per output would leave the GPU idle, the
input is split, partial results go through a staging buffer and semaphores count the blocks.
Source: aten/src/ATen/native/cuda/Reduce.cuh, ``setReduceConfig``, ``ReduceConfig::
global_memory_size`` and ``semaphore_size``; the same from PyTorch 2.6 to 2.15.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec

from memcalc.kernels.scratch import Allocations, ceil_div, later, nested
from memcalc.kernels.target import Target

_MAX_THREADS = 512
_WARP = 32
_INPUT_VECTOR = 4


class Reduction(msgspec.Struct, frozen=True, kw_only=True):
    """A reduction as the tensor iterator sees it, after merging neighbouring dimensions."""

    outputs: int
    inputs_per_output: int
    along_fastest: bool
    """The reduced dimension is the one that is contiguous in memory."""
    reduced_dims: int = 1
    output_vector: int = 4
    """Outputs that can be loaded together: 4, 2 or 1."""
    accumulator_bytes: int = 4


def _power_of_two_below(value: int) -> int:
    return 1 << (value.bit_length() - 1)


def staging(reduction: Reduction, target: Target) -> Allocations:
    """Bytes of staging and semaphores; empty where one block handles each output."""
    n_out, n_in = reduction.outputs, reduction.inputs_per_output
    if not n_out or not n_in:
        return ()
    fast = reduction.along_fastest
    vector = 1 if fast else reduction.output_vector
    width, height = (n_in, n_out) if fast else (n_out // vector, n_in)
    if fast and width > 128 and reduction.reduced_dims == 1:
        width //= _INPUT_VECTOR
    block_x, block_y = _block(width, height, _MAX_THREADS // vector)
    step_in, step_out = (block_x, 1) if fast else (1, block_x)
    per_thread = ceil_div(n_in, step_in)
    split = per_thread >= min(block_y * 16, 256)
    if split:
        step_in *= block_y
    else:
        step_out *= block_y
    per_thread = ceil_div(n_in, step_in)
    blocks = ceil_div(n_out // vector, step_out)
    resident = target.multiprocessors * (target.architecture.threads // (block_x * block_y))
    if not split or per_thread < 256 or blocks > resident:
        return ()
    splits = max(
        min(ceil_div(resident, blocks), ceil_div(per_thread, 16)), ceil_div(per_thread, 256)
    )
    if splits <= 1:
        return ()
    width_factor = 1 if fast else block_x * vector
    buffer = reduction.accumulator_bytes * n_out * splits * width_factor
    return nested(buffer, 4 * blocks)


def _block(width: int, height: int, threads: int) -> tuple[int, int]:
    """Shape of a block: as square as a warp allows, powers of two."""
    width = threads if width >= threads else _power_of_two_below(max(width, 1))
    height = threads if height >= threads else _power_of_two_below(max(height, 1))
    block_x = min(width, _WARP)
    block_y = min(height, threads // block_x)
    return min(width, threads // block_y), block_y


Axis = tuple[int, int]
"""Stride in elements and size of a dimension."""
_LARGEST = 2**31 - 1


def taken(
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    dims: tuple[int, ...],
    accumulator_bytes: int,
    element_bytes: int,
    output_bytes: int,
    target: Target,
) -> Allocations:
    """What a reduction over ``dims`` takes, part by part where offsets do not fit in 32 bits.

    Args:
        shape: of the input.
        strides: of the input, in elements.
        dims: reduced dimensions; empty for all.
        accumulator_bytes: of a partial result: 4 for fp16, bf16 and fp32 sums, 8 for fp64 and
            int64.
        element_bytes: of the input.
        output_bytes: of a result; what is wider is kept elsewhere from part to part.
        target: the GPU.
    """
    reduced = {d % len(shape) for d in dims} if dims else set(range(len(shape)))
    inside = _merge([(strides[d], shape[d]) for d in reduced if shape[d] != 1])
    outside = _merge(
        [(strides[d], shape[d]) for d in set(range(len(shape))) - reduced if shape[d] != 1]
    )
    parts = list(_parts(inside, outside, element_bytes))
    held = len(parts) > 1 and accumulator_bytes > output_bytes
    words: Allocations = ()
    if held:
        words = (math.prod(size for _, size in outside) * accumulator_bytes,)
    for part in parts:
        before = sum(word > 0 for word in words)
        words += later(staging(_describe(*part, accumulator_bytes), target), before)
    return (*words, ~0) if held else words


def _parts(
    inside: list[Axis], outside: list[Axis], element_bytes: int
) -> Iterator[tuple[list[Axis], list[Axis]]]:
    """Halves of halves until offsets in bytes are small enough, the first ones first.

    Source: aten/src/ATen/TensorIterator.cpp, ``SplitUntil32Bit`` and ``get_dim_to_split`` (2.13).
    """
    axes = inside + outside
    last = element_bytes * sum((size - 1) * stride for stride, size in axes)
    if last < _LARGEST and math.prod(size for _, size in axes) <= _LARGEST:
        yield inside, outside
        return
    longest = max(axes, key=lambda axis: ((axis[1] - 1) * axis[0], axis[0]))
    stride, size = longest
    for half in (size // 2, size - size // 2):
        cut = [(stride, half)] if half > 1 else []
        yield from _parts(_with(inside, longest, cut), _with(outside, longest, cut), element_bytes)


def _with(axes: list[Axis], old: Axis, new: list[Axis]) -> list[Axis]:
    """These, and ``new`` ones in the place of an ``old`` one."""
    return [kept for axis in axes for kept in (new if axis is old else [axis])]


def _describe(inside: list[Axis], outside: list[Axis], accumulator_bytes: int) -> Reduction:
    """See a reduction as the tensor iterator does."""
    n_in = math.prod(size for _, size in inside)
    n_out = math.prod(size for _, size in outside)
    fast = not outside or (bool(inside) and inside[0][0] < outside[0][0])
    vector = 4
    if not fast and outside[0][0] == 1:
        others = [outside[0][1], *(stride for stride, _ in outside[1:] + inside)]
        while vector > 1 and any(value % vector for value in others):
            vector //= 2
    else:
        vector = 1
    return Reduction(
        outputs=n_out,
        inputs_per_output=n_in,
        along_fastest=fast,
        reduced_dims=len(inside),
        output_vector=vector,
        accumulator_bytes=accumulator_bytes,
    )


def _merge(dims: list[Axis]) -> list[Axis]:
    """Merge (stride, size) pairs that are contiguous with each other, fastest first."""
    merged: list[Axis] = []
    for stride, size in sorted(dims):
        if merged and merged[-1][0] * merged[-1][1] == stride:
            merged[-1] = (merged[-1][0], merged[-1][1] * size)
        else:
            merged.append((stride, size))
    return merged
