"""What sparse tensors are made of: indices and values, which are tensors of their own.

Shapes: N positions, S sparse dimensions; indices (S, N), values (N, ...). In compressed rows or
columns: beginnings (R + 1,), indices (N,), values (N,).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import torch

from memcalc.kernels.formulas import KernelCall
from memcalc.trace.torch_private.dispatch import FakeTensor, as_meta, mode_in_use

_aten = torch.ops.aten
CLONE, DETACH = _aten.clone.default, _aten.detach.default
MAKES = _aten._sparse_coo_tensor_with_dims_and_tensors.default
ELSEWHERE = "run the script with --backend driver, or measure it with memcalc run"
"""What to do where sparse tensors are not simulated."""
ROWS, COLUMNS = torch.sparse_csr, torch.sparse_csc
_LAYOUTS = (torch.sparse_coo, ROWS, COLUMNS)
_COMPRESSED = _aten._sparse_compressed_tensor_unsafe.default


class Kernels(Protocol):
    """What operators on sparse tensors ask for."""

    def coalesce(self, tensor: torch.Tensor) -> torch.Tensor:
        """Each position once."""
        ...

    def take(self, call: KernelCall) -> None:
        """Take and give back what a kernel needs beside its outputs."""
        ...


def is_sparse(value: Any) -> bool:
    """A sparse tensor in coordinates."""
    return isinstance(value, torch.Tensor) and value.layout is torch.sparse_coo


def is_compressed(value: Any) -> bool:
    """A sparse matrix in compressed rows or columns."""
    return isinstance(value, torch.Tensor) and value.layout in (ROWS, COLUMNS)


def any_sparse(args: tuple[Any, ...]) -> bool:
    """Some arguments, or what lists among them hold, are sparse tensors."""
    return any(
        any(map(has_parts, arg)) if isinstance(arg, list | tuple) else has_parts(arg)
        for arg in args
    )


def has_parts(value: Any) -> bool:
    """A sparse tensor, in coordinates or compressed."""
    return isinstance(value, torch.Tensor) and value.layout in _LAYOUTS


def parts(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The tensors that hold a tensor's memory: itself, or indices and values of a sparse one."""
    if is_compressed(tensor):
        return compressed_parts(tensor)
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
    sides: tuple[int, int] | None = None,
) -> torch.Tensor:
    """A sparse tensor with other parts; ``None``: of the same shape, coalesced as it is."""
    made: torch.Tensor = MAKES(
        *(sides or (tensor.sparse_dim(), tensor.dense_dim())),
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
    return indices.new_empty((indices.shape[1],), dtype=torch.long)


def compressed_parts(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Beginnings, indices and values of a matrix in compressed rows or columns."""
    if tensor.layout is ROWS:
        first, second = _aten.crow_indices.default(tensor), _aten.col_indices.default(tensor)
    else:
        first, second = _aten.ccol_indices.default(tensor), _aten.row_indices.default(tensor)
    return first, second, _aten.values.default(tensor)


def assembled(
    layout: Any, held: Iterable[torch.Tensor], shape: Iterable[int], *, unique: bool, **how: Any
) -> torch.Tensor:
    """A sparse tensor of parts, by PyTorch's own functions; whether they can be so is not asked."""
    *places, values = held
    makes: Any = torch.sparse_compressed_tensor
    if layout is torch.sparse_coo:
        makes = torch.sparse_coo_tensor
        how["is_coalesced"] = unique
    else:
        how["layout"] = layout
    made: torch.Tensor = makes(*places, values, tuple(shape), check_invariants=False, **how)
    return made


def compressed(
    layout: Any,
    shape: Iterable[int],
    first: torch.Tensor,
    second: torch.Tensor,
    values: torch.Tensor,
) -> torch.Tensor:
    """A matrix in compressed rows or columns on the device, of these parts.

    C++ makes one of parts that it takes for real ones; of what they are underneath it makes one
    that is as fake as they are.
    """
    mode = mode_in_use()
    with as_meta(mode):
        made = _COMPRESSED(
            first,
            second,
            values,
            list(shape),
            dtype=values.dtype,
            layout=layout,
            device=torch.device("meta"),
        )
    return FakeTensor(mode, made, values.device)
