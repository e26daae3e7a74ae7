"""What the kernels take that copy parameters into and out of the buffers of collectives.

Each tells its blocks where to work by a list of 64-bit numbers on the device.
Source: aten/src/ATen/native/cuda/TensorShape.cu, ``split_with_sizes_copy_out_cuda`` and
``_chunk_cat_out_cuda`` (2.11 and 2.13).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from memcalc.kernels.scratch import Allocations, ceil_div
from memcalc.kernels.target import Target

_THREADS = 128
_TILE = _THREADS * 16
"""Bytes that a block copies at once."""
_NUMBER = 8


def split_copy(pieces: Sequence[int], chunks: int, target: Target) -> Allocations:
    """The list of ``split_with_sizes_copy``.

    Args:
        pieces: bytes that each split has of one chunk.
        chunks: how many there are, one behind the other.
        target: the GPU.
    """
    blocks = sum(ceil_div(piece, _TILE) for piece in pieces)
    most = target.multiprocessors * target.architecture.threads // _THREADS * 2
    factor = ceil_div(blocks * chunks, most)
    per_block = min(math.ceil(math.sqrt(factor)), chunks)
    tile = _TILE * ceil_div(factor, per_block)
    blocks = sum(ceil_div(piece, tile) for piece in pieces)
    return ((4 * len(pieces) + 1 + blocks) * _NUMBER, ~0)


def chunk_cat(pieces: Sequence[int]) -> Allocations:
    """The list of ``_chunk_cat``; ``pieces`` are bytes that each tensor has in one chunk."""
    blocks = sum(ceil_div(piece, _TILE) for piece in pieces)
    return ((6 * len(pieces) + 2 + blocks) * _NUMBER, ~0)
