"""Sparse matrices in compressed rows or columns (CSR, CSC) on CUDA.

They have no memory but that of three tensors: where each compressed row (or column) begins, the
plain index of each value, and the values. Shapes: N values in R rows; (R + 1,), (N,), (N,).

Sources: aten/src/ATen/native/sparse/ SparseCsrTensor.cpp, SparseCsrTensorMath.cpp,
SparseUnaryOps.cpp, cuda/SparseCsrTensorMath.cu and cuda/SparseBlasImpl.cpp; in which order they
allocate was recorded with PyTorch 2.13. cuSPARSE's own workspaces are not known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from memcalc.errors import EstimateError
from memcalc.kernels.formulas import KernelCall
from memcalc.trace.operators.sparse_layouts import LAYOUTS, dense, flipped
from memcalc.trace.operators.sparse_parts import (
    CLONE,
    COLUMNS,
    ELSEWHERE,
    Kernels,
    compressed,
    compressed_parts,
    is_compressed,
)

_aten = torch.ops.aten
_WORKSPACE = KernelCall("untold", ("cuSPARSE",))


def on_compressed(
    kernels: Kernels, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Run an operator some of whose arguments are compressed matrices.

    Raises:
        EstimateError: what CUDA does there is not known.
    """
    if func not in _KERNELS:
        raise EstimateError(
            f"{func._schema.name} of a sparse matrix in compressed rows or columns (CSR, CSC) is "
            f"not simulated: {ELSEWHERE}"
        )
    return _KERNELS[func](kernels, *args, **kwargs)


# ---- elementwise


def _cloned(_: Kernels, tensor: torch.Tensor, *__: Any, **___: Any) -> torch.Tensor:
    """``clone``, and what keeps zeros: values are made first."""
    first, second, values = compressed_parts(tensor)
    values = values.clone()
    second = second.clone()
    return compressed(tensor.layout, tensor.shape, first.clone(), second, values)


def _scaled(kernels: Kernels, tensor: torch.Tensor, by: Any, *_: Any) -> torch.Tensor:
    if isinstance(by, torch.Tensor) and by.dim():
        raise EstimateError(
            "the product of a sparse matrix in compressed rows or columns and a tensor of several "
            "elements is not simulated: run the script with --backend driver"
        )
    return _cloned(kernels, tensor)


def _cast(_: Kernels, tensor: torch.Tensor, *, dtype: Any = None, **__: Any) -> torch.Tensor:
    first, second, values = compressed_parts(tensor)
    values = values.to(dtype or values.dtype, copy=True)
    first = first.clone()
    return compressed(tensor.layout, tensor.shape, first, second.clone(), values)


def _copied(
    _: Kernels, target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False
) -> torch.Tensor:
    """``copy_``: part by part, of a matrix with as many values."""
    for part, other in zip(compressed_parts(target), compressed_parts(source), strict=True):
        part.copy_(other, non_blocking)
    return target


def _shared(_: Kernels, tensor: torch.Tensor) -> torch.Tensor:
    """Another tensor of the same parts."""
    return compressed(tensor.layout, tensor.shape, *compressed_parts(tensor))


def _sum(_: Kernels, tensor: torch.Tensor, *, dtype: Any = None) -> torch.Tensor:
    return compressed_parts(tensor)[2].sum(dtype=dtype)


# ---- products


def _product(kernels: Kernels, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """``_sparse_csr_mm``: added to zeros, by rows."""
    _refuse_two(left, right)
    if is_compressed(left) and left.layout is COLUMNS:
        left = flipped(left)
    like = right if is_compressed(left) else left
    zeros = like.new_zeros((left.shape[0], right.shape[1]))
    out = _added(kernels, zeros, left, right)
    del zeros
    return out


def _added(
    kernels: Kernels, base: torch.Tensor, left: torch.Tensor, right: torch.Tensor, **_: Any
) -> torch.Tensor:
    """``addmm``: what is added to is copied into the result, and cuSPARSE adds the product."""
    _refuse_two(left, right)
    sparse, other = (left, right) if is_compressed(left) else (right.t(), left.t())
    out = other.new_empty((left.shape[0], right.shape[1]))
    if not sparse._nnz() or not out.numel():
        return out
    if sparse.layout is COLUMNS:
        sparse = flipped(sparse)
    kept = other if _as_it_lies(other) else other.contiguous()
    kernels.take(_WORKSPACE)
    del kept, sparse
    return out


def _refuse_two(left: torch.Tensor, right: torch.Tensor) -> None:
    if left.layout is not torch.strided and right.layout is not torch.strided:
        raise EstimateError(f"the product of two sparse matrices is not simulated: {ELSEWHERE}")


def _as_it_lies(dense: torch.Tensor) -> bool:
    """Source: LinearAlgebraUtils.h, ``is_blas_compatible_row_major_order`` and of columns."""
    (height, width), (down, along) = dense.shape, dense.stride()
    in_rows = along == 1 and down >= max(1, width)
    return in_rows or (down == 1 and along >= max(1, height))


def _with_vector(kernels: Kernels, matrix: torch.Tensor, vector: torch.Tensor) -> torch.Tensor:
    """``mv``: the vector of a row or column lies in one piece."""
    out = vector.new_empty((matrix.shape[0],))
    if not matrix._nnz():
        return out
    rows = flipped(matrix) if matrix.layout is COLUMNS else matrix
    kept = vector.contiguous()
    kernels.take(_WORKSPACE)
    del kept, rows
    return out


def _vector_added(
    kernels: Kernels, _: torch.Tensor, matrix: torch.Tensor, vector: torch.Tensor, **__: Any
) -> torch.Tensor:
    return _with_vector(kernels, matrix, vector)


_KEEP_ZEROS = (
    *("abs", "neg", "relu", "sqrt", "sin", "tanh", "sign", "expm1", "log1p", "ceil", "floor"),
    *("round", "trunc"),
)
"""Functions whose results have the positions of their arguments. Source: SparseUnaryOps.cpp."""
AS_COMPRESSED_ARE = {
    getattr(_aten, name).default
    for name in ("crow_indices", "col_indices", "ccol_indices", "row_indices", "values", "t")
} | {_aten.transpose.int}
"""Operators on compressed matrices that take nothing."""
_KERNELS: dict[Any, Callable[..., Any]] = {
    **LAYOUTS,
    **dict.fromkeys((CLONE, *(getattr(_aten, name).default for name in _KEEP_ZEROS)), _cloned),
    **dict.fromkeys((_aten.mul.Tensor, _aten.mul.Scalar), _scaled),
    _aten._to_copy.default: _cast,
    _aten.copy_.default: _copied,
    **dict.fromkeys((_aten.detach.default, _aten.alias.default), _shared),
    _aten._to_dense.default: dense,
    _aten.sum.default: _sum,
    **dict.fromkeys((_aten.mm.default, _aten._sparse_mm.default), _product),
    **dict.fromkeys((_aten.addmm.default, _aten._sparse_addmm.default), _added),
    _aten.mv.default: _with_vector,
    _aten.addmv.default: _vector_added,
}
"""What runs instead of others; each is given ``Kernels``."""
