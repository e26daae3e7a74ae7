"""Reads what FSDP2 copies into and out of its buffers.

Its operators (torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py, 2.13) write to ``out``.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from memcalc.kernels.formulas import KernelCall
from memcalc.kernels.scratch import round_up
from memcalc.trace.scratch.shapes import Reader, fixed, is_dense


def _split_copy(args: tuple[Any, ...], out: Any) -> KernelCall | None:
    """Splits of one tensor, each into a tensor of its own.

    Source: aten/src/ATen/native/cuda/TensorShape.cu, ``split_with_sizes_copy_out_cuda`` (2.13).
    """
    tensor, sizes = args[:2]
    dim = args[2] if len(args) > 2 else 0
    if not all(is_dense(t) and t.dtype == tensor.dtype for t in (tensor, *out)):
        return None
    width = tensor.stride(dim) * tensor.element_size()
    return KernelCall(
        "split_copy", (tuple(size * width for size in sizes), math.prod(tensor.shape[:dim]))
    )


def _chunk_cat(args: tuple[Any, ...], out: torch.Tensor) -> KernelCall | None:
    """Chunks of several tensors, one of each behind the other.

    Without a kernel for the dtypes, tensors are filled up to whole chunks first.
    Source: the same, ``_chunk_cat_out_cuda``; TensorShape.cpp, ``_chunk_cat_out``.
    """
    tensors, dim, chunks = args[:3]
    dtypes = tensors[0].dtype, out.dtype
    known = dtypes[0] == dtypes[1] or dtypes == (torch.bfloat16, torch.float32)
    if known and all(map(is_dense, tensors)):
        return KernelCall(
            "chunk_cat",
            (tuple(_whole(t, dim, chunks) // chunks * out.element_size() for t in tensors),),
        )
    filled = [_whole(t, dim, chunks) * t.element_size() for t in tensors if t.shape[dim] % chunks]
    return fixed((*filled, *(~number for number in range(len(filled)))))


def _whole(tensor: torch.Tensor, dim: int, chunks: int) -> int:
    """Elements of a tensor that is filled up to whole chunks."""
    return math.prod(
        (*tensor.shape[:dim], round_up(tensor.shape[dim], chunks), *tensor.shape[dim + 1 :])
    )


READERS: dict[str, Reader] = {
    "fsdp::split_with_sizes_copy": _split_copy,
    "fsdp::chunk_cat": _chunk_cat,
}
