"""The staging buffer of a reduction that is split over several blocks of threads.

Every bias gradient is such a reduction. When one block per output would leave the GPU idle, the
input is split, partial results go through a staging buffer and semaphores count the blocks.
Source: aten/src/ATen/native/cuda/Reduce.cuh, ``setReduceConfig``, ``ReduceConfig::
global_memory_size`` and ``semaphore_size``; the same from PyTorch 2.6 to 2.15.
"""

from __future__ import annotations

import msgspec

from memcalc.kernels.scratch import Allocations, ceil_div, nested
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


def describe(
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    dims: tuple[int, ...],
    accumulator_bytes: int,
) -> Reduction:
    """See a reduction over ``dims`` as the tensor iterator does.

    Args:
        shape: of the input.
        strides: of the input, in elements.
        dims: reduced dimensions; empty for all.
        accumulator_bytes: 4 for fp16, bf16 and fp32 sums, 8 for fp64 and int64.
    """
    reduced = {d % len(shape) for d in dims} if dims else set(range(len(shape)))
    inside = _merge([(strides[d], shape[d]) for d in reduced if shape[d] != 1])
    outside = _merge(
        [(strides[d], shape[d]) for d in set(range(len(shape))) - reduced if shape[d] != 1]
    )
    n_in = n_out = 1
    for _, size in inside:
        n_in *= size
    for _, size in outside:
        n_out *= size
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


def _merge(dims: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Merge (stride, size) pairs that are contiguous with each other, fastest first."""
    merged: list[tuple[int, int]] = []
    for stride, size in sorted(dims):
        if merged and merged[-1][0] * merged[-1][1] == stride:
            merged[-1] = (merged[-1][0], merged[-1][1] * size)
        else:
            merged.append((stride, size))
    return merged
