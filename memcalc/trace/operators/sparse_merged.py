"""Sparse tensors in coordinates that are summed over dimensions, or met with another's positions.

Sources: aten/src/ATen/native/sparse/ SparseTensorMath.cpp (``_sparse_sum``), SparseTensor.cpp
(``sparse_mask``) and SparseBinaryOpIntersectionCommon.h; in which order they allocate was recorded
with PyTorch 2.13.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from memcalc.errors import EstimateError
from memcalc.trace.operators.sparse_parts import ELSEWHERE, Kernels, both_parts, flattened, like

_aten = torch.ops.aten


def _summed(
    kernels: Kernels, tensor: torch.Tensor, dims: int | list[int], **_: Any
) -> torch.Tensor:
    """``torch.sparse.sum``: positions that become the same are added."""
    count = tensor.dim()
    gone = {dim % count for dim in ([dims] if isinstance(dims, int) else dims)}
    indices, values = both_parts(tensor)
    if tensor.dense_dim():
        raise EstimateError(
            f"the sum of a sparse tensor whose values are tensors is not simulated: {ELSEWHERE}"
        )
    values = values.clone()
    if len(gone) == count:
        return values.sum(0)
    kept = [dim for dim in range(count) if dim not in gone]
    places = indices.new_empty((len(kept), indices.shape[1]))
    shape = [tensor.shape[dim] for dim in kept]
    added = like(tensor, places, values, coalesced=False, shape=shape, sides=(len(kept), 0))
    del places, values
    return kernels.coalesce(added)


def met(tensor: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Values at the positions of another, where each has as many: what is sought is in order.

    Raises:
        EstimateError: positions may repeat, or one has more than the other.
    """
    if not tensor.is_coalesced() or tensor._nnz() != other._nnz():
        raise EstimateError(
            "positions of a sparse tensor that are looked up in those of another, of more or "
            f"fewer, are not simulated: {ELSEWHERE}"
        )
    indices, values = both_parts(other)
    hashes, order = flattened(indices), flattened(indices)
    sought = torch.empty_like(indices)
    indices.new_empty((1,))
    places = torch.empty_like(indices)
    found = torch.empty_like(values, dtype=tensor.dtype)
    del sought, order, hashes
    return like(other, places, found)


MERGED: dict[Any, Callable[..., torch.Tensor]] = {
    _aten._sparse_sum.dim: _summed,
}
"""What runs instead of others; each is given ``Kernels``."""
