"""Operands of matrix products that cuBLAS cannot read as they lie: they are copied.

Readers as in ``memcalc.trace.scratch.readers``. Source: aten/src/ATen/native/cuda/Blas.cpp,
``prepare_matrix_for_cublas`` and ``prepare_batch_matrix_for_cublas`` (2.13): one of the two inner
dimensions must lie without gaps and the other in larger steps; what is conjugated in name only is
written out where the product does not also transpose it.
"""

from __future__ import annotations

from typing import Any

import torch

from memcalc.kernels.formulas import KernelCall
from memcalc.kernels.scratch import nested
from memcalc.trace.scratch.shapes import bytes_of, fixed, is_dense


def _product(args: tuple[Any, ...], out: Any) -> KernelCall | None:
    left, right = _factors(args)
    turned = _in_rows(out)
    first, second = (right, left) if turned else (left, right)
    return _call(_copied(first, turned), _copied(second, turned))


def _factors(args: tuple[Any, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """What is added to a product comes first, and the type of the result (``out_dtype``) last."""
    left, right = [arg for arg in args if isinstance(arg, torch.Tensor)][-2:]
    return left, right


def _copied(tensor: torch.Tensor, turned: bool) -> int:
    """Bytes of the copy of a matrix; 0: there is none."""
    if tensor.is_contiguous() and not tensor.is_conj():
        return 0
    (rows, columns), (down, across) = tensor.shape, tensor.stride()
    if is_dense(tensor):
        by_rows = tensor.is_contiguous()
    elif down == 1 and across >= max(1, rows):
        by_rows = False
    elif across == 1 and down >= max(1, columns):
        by_rows = True
    else:
        return bytes_of(tensor)
    return bytes_of(tensor) if tensor.is_conj() and by_rows == turned else 0


def _in_rows(out: torch.Tensor) -> bool:
    if is_dense(out):
        return out.is_contiguous()
    return not (out.stride(0) == 1 and out.stride(1) >= max(1, out.shape[0]))


def _batched(args: tuple[Any, ...], out: Any) -> KernelCall | None:
    left, right = _factors(args)
    by_columns = out.stride(1) == 1 and (out.shape[2] == 1 or out.stride(2) >= max(1, out.shape[1]))
    turned = not by_columns
    first, second = (right, left) if turned else (left, right)
    m, n = (out.shape[2], out.shape[1]) if turned else (out.shape[1], out.shape[2])
    k = left.shape[2]
    return _call(_copied_batch(first, turned, m, k), _copied_batch(second, turned, k, n))


def _copied_batch(tensor: torch.Tensor, turned: bool, inner: int, outer: int) -> int:
    if tensor.is_contiguous() and not tensor.is_conj():
        return 0
    fast, leading = (2, 1) if turned else (1, 2)
    strides = tensor.stride()
    plain = strides[fast] == 1 and strides[leading] >= max(1, inner)
    if plain:
        return bytes_of(tensor) if tensor.is_conj() else 0
    if strides[leading] == 1 and strides[fast] >= max(1, outer):
        return 0
    return bytes_of(tensor)


def _grouped(args: tuple[Any, ...], out: Any) -> KernelCall | None:
    """See ``memcalc.kernels.grouped``; where both hold rows of all groups, ``out`` holds them."""
    left, right = args[:2]
    if left.dtype != torch.bfloat16 or not out.numel():
        return None
    shared, groups = 2, out.shape[0]
    if left.dim() != right.dim():
        shared = 0 if left.dim() == 2 else 1
        groups = (right if shared == 0 else left).shape[0]
    return KernelCall("grouped_mm", (groups, (left.shape[-2], right.shape[-1]), shared))


def _call(*copies: int) -> KernelCall | None:
    return fixed(after=nested(*copies)) if any(copies) else None


READERS = {
    **dict.fromkeys(("mm", "addmm"), _product),
    **dict.fromkeys(("bmm", "baddbmm"), _batched),
    "_grouped_mm": _grouped,
}
