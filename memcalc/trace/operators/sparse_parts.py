"""Indices and values of sparse tensors in coordinates, which are tensors of their own.

Shapes: N positions, S sparse dimensions; indices (S, N), values (N, ...).
"""

from __future__ import annotations

from typing import Any

import torch

_aten = torch.ops.aten
CLONE, DETACH = _aten.clone.default, _aten.detach.default
MAKES = _aten._sparse_coo_tensor_with_dims_and_tensors.default


def is_sparse(value: Any) -> bool:
    """A sparse tensor in coordinates."""
    return isinstance(value, torch.Tensor) and value.layout is torch.sparse_coo


def any_sparse(args: tuple[Any, ...]) -> bool:
    """Some arguments, or what lists among them hold, are sparse tensors."""
    return any(
        any(map(is_sparse, arg)) if isinstance(arg, list | tuple) else is_sparse(arg)
        for arg in args
    )


def parts(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The tensors that hold a tensor's memory: itself, or indices and values of a sparse one."""
    return both_parts(tensor) if is_sparse(tensor) else (tensor,)


def both_parts(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Indices and values of a sparse tensor."""
    return _aten._indices.default(tensor), _aten._values.default(tensor)


def like(
    tensor: torch.Tensor,
    indices: torch.Tensor,
    values: torch.Tensor,
    *,
    coalesced: bool | None = None,
    shape: list[int] | None = None,
) -> torch.Tensor:
    """A sparse tensor with other parts; ``None``: of the same shape, coalesced as it is."""
    made: torch.Tensor = MAKES(
        tensor.sparse_dim(),
        tensor.dense_dim(),
        shape or list(tensor.shape),
        indices,
        values,
        dtype=values.dtype,
        layout=torch.sparse_coo,
        device=values.device,
        is_coalesced=tensor.is_coalesced() if coalesced is None else coalesced,
    )
    return made


def cloned(tensor: torch.Tensor, coalesced: bool | None = None, **_: Any) -> torch.Tensor:
    """``clone``: values are made first."""
    indices, values = both_parts(tensor)
    values = values.clone()
    return like(tensor, indices.clone(), values, coalesced=coalesced)


def flattened(indices: torch.Tensor) -> torch.Tensor:
    """One number for each position. Source: FlattenIndicesCommon.h, ``_flatten_indices``."""
    return indices.new_empty((indices.shape[1],))
