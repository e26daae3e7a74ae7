"""Products of sparse matrices in coordinates with dense ones, as CUDA makes them by cuSPARSE.

Sources: aten/src/ATen/native/sparse/SparseTensorMath.cpp, ``_sparse_mm``, and
cuda/SparseCUDATensorMath.cu, ``s_addmm_out_sparse_dense_cuda``; cuSPARSE's own workspaces are
asked of cuSPARSE, and are not known (2.13).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from memcalc.errors import EstimateError
from memcalc.kernels.formulas import KernelCall
from memcalc.trace.operators.scalar_types import name_of
from memcalc.trace.operators.sparse_parts import (
    Kernels,
    both_parts,
    cloned,
    is_sparse,
    like,
)

_aten = torch.ops.aten
_WORKSPACE = KernelCall("untold", ("cuSPARSE",))
_REFUSED = (torch.float16, torch.bfloat16)
"""What CUDA has no product for; compressed matrices it multiplies in these too."""


def _added(
    kernels: Kernels,
    base: torch.Tensor,
    sparse: torch.Tensor,
    dense: torch.Tensor,
    *_: Any,
    **__: Any,
) -> torch.Tensor:
    """``addmm``: rows as CSR of 32 bits, and the result in columns."""
    if is_sparse(dense):
        return _refused()
    out = dense.new_empty((sparse.shape[0], dense.shape[1]))
    if not sparse.is_coalesced():
        sparse = kernels.coalesce(sparse)
    count = sparse._nnz()
    if not count:
        # The factor of what is added to.
        dense.new_empty(())
        return out
    rows = dense.new_empty((sparse.shape[0] + 1,), dtype=torch.int32)
    dense.new_empty((count,), dtype=torch.int32)  # rows of all positions, for a moment
    columns = dense.new_empty((count,), dtype=torch.int32)
    if dense.dtype in _REFUSED:
        kind = name_of(dense.dtype)
        raise NotImplementedError(f"\"addmm_sparse_cuda\" not implemented for '{kind}'")
    column_major = dense.new_empty(out.shape[::-1])
    kept = dense if _in_rows_or_columns(dense) else dense.contiguous()
    kernels.take(_WORKSPACE)
    del kept, column_major, columns, rows
    return out


def _product(kernels: Kernels, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """``mm``: added to zeros."""
    if is_sparse(left) and is_sparse(right):
        return _refused()
    if is_sparse(left):
        zeros = right.new_zeros((left.shape[0], right.shape[1]))
        return _added(kernels, zeros, left, right)
    zeros = left.new_zeros((left.shape[0], right.shape[1]))
    return _added(kernels, zeros.t(), _transposed(kernels, right), left.t()).t()


def _with_vector(kernels: Kernels, matrix: torch.Tensor, vector: torch.Tensor) -> torch.Tensor:
    return _product(kernels, matrix, vector.unsqueeze(-1)).squeeze(-1)


def _transposed(kernels: Kernels, tensor: torch.Tensor, *dims: int) -> torch.Tensor:
    """A copy whose rows of indices change places (TensorShape.cpp, ``sparse_transpose_``)."""
    first, second = dims or (0, 1)
    indices, values = both_parts(cloned(tensor))
    indices[0].clone()
    shape = list(tensor.shape)
    shape[first], shape[second] = shape[second], shape[first]
    return like(tensor, indices, values, coalesced=False, shape=shape)


def _in_rows_or_columns(dense: torch.Tensor) -> bool:
    height, width = dense.shape
    return dense.stride() in ((1, height), (width, 1))


def _refused() -> torch.Tensor:
    raise EstimateError(
        "the product of two sparse matrices is not simulated: run the script with --backend "
        "driver, or measure it with memcalc run"
    )


PRODUCTS: dict[Any, Callable[..., torch.Tensor]] = {
    _aten.addmm.default: _added,
    _aten._sparse_addmm.default: _added,
    **dict.fromkeys((_aten.mm.default, _aten._sparse_mm.default), _product),
    _aten.mv.default: _with_vector,
    **dict.fromkeys((_aten.t.default, _aten.transpose.int), _transposed),
}
"""What runs instead of others; each is given ``Kernels``."""
