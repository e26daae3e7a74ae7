"""Buffers that the flash and memory-efficient attention kernels take beside their outputs.

Shapes: B batch, H query heads, Hk key heads, Sq query length, Sk key length, D head size.
Sources: aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp (``mha_fwd``,
``set_params_splitkv``, ``num_splits_heuristic``, ``mha_bwd``), attention.cu,
attention_backward.cu and mem_eff_attention/kernel_backward.h, PyTorch 2.11 to 2.13.
"""

from __future__ import annotations

from math import ceil

from memcalc.kernels.scratch import Allocations, ceil_div, later, round_up
from memcalc.kernels.target import Target
from memcalc.units import KIB
from memcalc.version import NEWEST_TORCH

_MAX_SPLITS = 128
_WIDE_PADDED_SINCE = (2, 11)
_TWO_BLOCKS_SINCE = (2, 5)
"""Keys are split as if a multiprocessor took two blocks (recorded with 2.4.1 and 2.5.1)."""
_FLOAT = 4
_SEED_AND_OFFSET = 16
"""Bytes that flash attention with dropout takes twice and keeps once (flash_api.cpp)."""
_SEEDED_SINCE = (2, 7)
"""Before, they lie on the host."""


def padded_head(head_dim: int, torch: tuple[int, int] = NEWEST_TORCH) -> int:
    """A head's size as flash attention's accumulators have it (recorded with 2.2.2 to 2.13)."""
    if head_dim <= 128 or torch < _WIDE_PADDED_SINCE:
        return round_up(head_dim, 32)
    return 192 if head_dim <= 192 else 256


def key_splits(tasks: int, processors: int, key_blocks: int) -> int:
    """Into how many parts flash attention splits the keys to keep the GPU busy.

    Source: flash_api.cpp, ``num_splits_heuristic``: the fewest parts that reach 85 % of the best
    efficiency, where efficiency is how full the last wave of blocks is.
    """
    if tasks >= 0.8 * processors:
        return 1
    limit = min(_MAX_SPLITS, processors, key_blocks)
    efficiency: dict[int, float] = {}
    for splits in range(1, limit + 1):
        if splits > 1 and ceil_div(key_blocks, splits) == ceil_div(key_blocks, splits - 1):
            continue
        waves = tasks * splits / processors
        efficiency[splits] = waves / ceil(waves)
    best = max(efficiency.values(), default=0.0)
    return next((s for s, value in efficiency.items() if value >= 0.85 * best), 1)


def flash_splits(query: tuple[int, int, int, int], k_len: int, dropout: float, room: int) -> int:
    """Into how many parts it splits the keys (``set_params_splitkv``).

    Args:
        query: (B, H, Sq, D).
        k_len: Sk.
        dropout: probability.
        room: blocks that the GPU is taken to run at once.
    """
    batch, heads, q_len, head_dim = query
    if dropout > 0:
        return 1
    block_n = 256 if head_dim <= 64 else 128 if head_dim <= 128 else 64
    tasks = batch * heads * ceil_div(q_len, 64)
    return key_splits(tasks, room, ceil_div(k_len, block_n))


def flash_forward(
    query: tuple[int, int, int, int], k_len: int, dropout: float, target: Target
) -> Allocations:
    """Partial results of keys split over blocks, not on a full GPU; with dropout a seed.

    Args:
        query: (B, H, Sq, D).
        k_len: Sk.
        dropout: probability; splitting is off with dropout.
        target: the GPU.
    """
    if dropout > 0:
        return (_SEED_AND_OFFSET,) if target.torch >= _SEEDED_SINCE else ()
    room = target.multiprocessors * (2 if target.torch >= _TWO_BLOCKS_SINCE else 1)
    splits = flash_splits(query, k_len, dropout, room)
    if splits == 1:
        return ()
    batch, heads, q_len, head_dim = query
    rows = splits * batch * heads * q_len
    return (_FLOAT * rows, _FLOAT * rows * padded_head(head_dim, target.torch))


def flash_backward(
    query: tuple[int, int, int, int],
    key: tuple[int, int, int, int],
    element: int,
    target: Target,
) -> Allocations:
    """Softmax sums and the fp32 accumulator of dq; expanded dk, dv for grouped heads.

    Where sums are to have one order, there is an accumulator for each block of keys that a
    multiprocessor may take (flash_api.cpp, ``mha_bwd``).

    Args:
        query: (B, H, Sq, D).
        key: (B, Hk, Sk, D).
        element: bytes per element of the inputs.
        target: the GPU.
    """
    batch, heads, q_len, head_dim = query
    rows = batch * heads * round_up(q_len, 128)
    splits = ceil_div(target.multiprocessors, batch * heads) if target.deterministic else 1
    sizes = [_FLOAT * rows, _FLOAT * splits * rows * padded_head(head_dim, target.torch)]
    if key[1] != heads:
        sizes += [element * batch * heads * key[2] * head_dim] * 2
    return tuple(sizes)


def efficient_forward(
    query: tuple[int, int, int, int], value_dim: int, element: int
) -> Allocations:
    """An fp32 accumulator of the output for half precision with wide heads.

    The kernel is chosen by the wider of keys and values (attention.cu, ``launchKernel``): above 128
    it does not keep its output in registers.
    """
    batch, heads, q_len, head_dim = query
    wide = element == 2 and max(head_dim, value_dim) > 128
    return (_FLOAT * batch * heads * q_len * value_dim,) if wide else ()


def efficient_backward(
    query: tuple[int, int, int, int],
    key: tuple[int, int, int, int],
    value_dim: int,
    element: int,
    target: Target,
) -> Allocations:
    """The row sums of grad x output and the fp32 workspace of dk and dv.

    Where heads share keys, which it takes from PyTorch 2.14 on, each has gradients of its own
    first, which are summed at the end (recorded with 2.14 and 2.15).

    Args:
        query: (B, H, Sq, D).
        key: (B, Hk, Sk, D).
        value_dim: of a value's head.
        element: bytes per element of the inputs.
        target: the GPU.
    """
    taken = _efficient_backward(query, key[2], value_dim, element, target)
    if query[1] == key[1]:
        return taken
    each = query[0] * query[1] * key[2] * element
    return (each * query[3], each * value_dim, *later(taken, 2), ~1, ~0)


def _efficient_backward(
    query: tuple[int, int, int, int], k_len: int, value_dim: int, element: int, target: Target
) -> Allocations:
    batch, heads, q_len, head_dim = query
    rows = batch * heads * q_len
    workspace = _efficient_workspace(query, k_len, value_dim, element, target)
    wide = max(head_dim, value_dim) > 128
    on_tensors = element == 4 or (wide and target.capability < _TURING)
    if not on_tensors:
        # The sums die with the launch, the workspace with the whole operator.
        return (_FLOAT * rows, *((workspace, ~0, ~1) if workspace else (~0,)))
    product = _FLOAT * rows * value_dim
    casts = (product, product) if element == 2 else ()
    # The product and its sum are freed before the workspace is taken. The sums of one head, or of
    # one row, lie as they are wanted; else they are copied.
    at = len(casts)
    copied = 1 not in (heads, q_len)
    sums = (_FLOAT * rows, _FLOAT * rows, ~(at + 1)) if copied else (_FLOAT * rows,)
    last = at + 3 if copied else at + 2
    frees = (~at, *(~i for i in range(at)))
    return (*casts, product, *sums, *frees, workspace, ~(last - 1), ~last)


def _efficient_workspace(
    query: tuple[int, int, int, int], k_len: int, value_dim: int, element: int, target: Target
) -> int:
    """Bytes of fp32 tiles of dq with a lock each, and of dk and dv where heads are wide.

    Source: mem_eff_attention/kernel_backward.h, ``GradQTempStorage`` and ``workspace_elements_gk``
    (2.11 and 2.13); the tiles are those that PyTorch asked for with 450 random problems.
    """
    batch, heads, q_len, head_dim = query
    groups, widest = batch * heads, max(head_dim, value_dim)
    small = target.architecture.shared_memory_of_block <= _SMALL
    sm80 = target.architecture.sm80
    narrow = element == 2 and widest <= 128 and sm80
    if widest <= 64:
        return groups * _tiles(q_len, 64, 64)
    if narrow and not small:
        return groups * _tiles(q_len, 128, 128)
    rows = 64 if small and (narrow or element == 4) else 128
    accumulated = ceil_div(head_dim, 64) * _tiles(q_len, rows, 64)
    if element == 4 or (widest <= 128 and rows == 128):
        return groups * accumulated
    width = round_up(head_dim, rows) + round_up(value_dim, rows)
    return groups * (accumulated + _FLOAT * _KEYS * width * _splits(groups, k_len, target.torch))


_TURING = (7, 5)
_SMALL = 100 * KIB
"""Shared memory of a block (8.6 and 8.9: 99 KiB) in which tiles of 128 rows have no place."""
_KEYS, _AT_ONCE = 64, 200
WORKSPACE_SINCE, _BOUNDED_SINCE = (2, 1), (2, 3)
"""Before the first, sums go where the gradients are."""


def _splits(groups: int, k_len: int, torch: tuple[int, int]) -> int:
    """Into how many parts keys are split: fewer, the more heads there are (seen with 2.13).

    At first into as many as they have blocks, and each part was counted as often (recorded with
    2.1.2 and 2.2.2).
    """
    blocks = ceil_div(k_len, _KEYS)
    if torch < _BOUNDED_SINCE:
        return blocks * blocks
    return max(1, min(blocks, _AT_ONCE // groups))


def _tiles(length: int, rows: int, columns: int) -> int:
    """Bytes of fp32 tiles along a sequence, each with a lock of 16 bytes."""
    return ceil_div(length, rows) * (_FLOAT * rows * columns + 16)
