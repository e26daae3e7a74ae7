"""From one layout of a matrix to another: dense, in coordinates, in compressed rows or columns.

Sources: aten/src/ATen/native/TensorConversions.cpp and sparse/SparseTensor.cpp (2.13); in which
order they allocate was recorded with PyTorch 2.13.
"""

from __future__ import annotations

from typing import Any

import torch

from memcalc.errors import EstimateError
from memcalc.trace.operators.sparse_parts import (
    COLUMNS,
    ELSEWHERE,
    ROWS,
    Kernels,
    both_parts,
    compressed,
    compressed_parts,
    flattened,
    is_compressed,
    is_sparse,
    like,
)

_aten = torch.ops.aten
_TO_CSR = _aten._convert_indices_from_coo_to_csr.default
_TO_COO = _aten._convert_indices_from_csr_to_coo.default


def made(
    kernels: Kernels,
    first: torch.Tensor,
    second: torch.Tensor,
    values: torch.Tensor,
    shape: Any = None,
    *,
    dtype: Any = None,
    layout: Any = ROWS,
    **_: Any,
) -> torch.Tensor:
    """``torch.sparse_csr_tensor`` and its like: the parts are kept as they are."""
    if layout not in (ROWS, COLUMNS) or values.dim() != 1:
        raise EstimateError(
            "of sparse tensors in compressed rows or columns single matrices of single numbers "
            f"are simulated: {ELSEWHERE}"
        )
    if shape is None:
        sides = first.numel() - 1, int(second.max()) + 1
        shape = sides if layout is ROWS else sides[::-1]
    return compressed(layout, shape, first, second, values.to(dtype or values.dtype))


def flipped(tensor: torch.Tensor) -> torch.Tensor:
    """From rows to columns or back. Source: ``sparse_compressed_to_flipped``.

    A matrix is a batch of one: its beginnings are copied, made coordinates, and these sorted by
    the other side.
    """
    first, second, values = compressed_parts(tensor)
    layout = COLUMNS if tensor.layout is ROWS else ROWS
    begins = tensor.shape[1] if layout is COLUMNS else tensor.shape[0]
    narrow = first.dtype is torch.int32
    offset = _ends(first)
    moved = first[:-1] + offset
    whole = torch.empty_like(first)
    del moved
    places = _TO_COO(whole, second, out_int32=narrow, transpose=True)
    _tiled(places[0])
    flat = flattened(places)
    order = flat.sort()[1]
    sorted_places = places.index_select(1, order)
    values = values.index_select(0, order)
    outer, inner = sorted_places
    found = _TO_CSR(outer, begins, out_int32=narrow)
    batched = torch.zeros_like(found)
    found[1:].clone()
    del found, order, flat, places, whole, offset
    return compressed(layout, tensor.shape, batched, inner, values)


def _ends(first: torch.Tensor) -> torch.Tensor:
    """How many values the matrices of the batch have before each."""
    return first.new_empty((1,)).cumsum(-1)


def _tiled(side: torch.Tensor) -> None:
    """Which matrix of the batch each value is of, and by how much that moves it."""
    batch = torch.empty_like(side)
    moves = torch.empty_like(side)
    del moves, batch


def in_rows(kernels: Kernels, tensor: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    """``to_sparse_csr``."""
    return _laid(kernels, tensor, ROWS)


def in_columns(kernels: Kernels, tensor: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    """``to_sparse_csc``."""
    return _laid(kernels, tensor, COLUMNS)


def _laid(kernels: Kernels, tensor: torch.Tensor, layout: Any) -> torch.Tensor:
    if is_compressed(tensor):
        if tensor.layout is not layout:
            return flipped(tensor)
        return compressed(layout, tensor.shape, *compressed_parts(tensor))
    if is_sparse(tensor):
        return _of_coordinates(kernels, tensor, layout)
    return _of_dense(tensor, layout)


def _of_coordinates(kernels: Kernels, tensor: torch.Tensor, layout: Any) -> torch.Tensor:
    """``coo_to_sparse_csr`` and, by way of a transposed copy, ``coo_to_sparse_csc``."""
    if layout is COLUMNS:
        turned = _of_coordinates(kernels, tensor.transpose(0, 1), ROWS)
        return compressed(COLUMNS, tensor.shape, *compressed_parts(turned))
    unique = tensor if tensor.is_coalesced() else kernels.coalesce(tensor)
    (rows, columns), values = both_parts(unique)
    begins = _TO_CSR(rows, tensor.shape[0])
    return compressed(ROWS, tensor.shape, begins, columns, values)


def _of_dense(dense: torch.Tensor, layout: Any) -> torch.Tensor:
    """``dense_to_sparse_csr``: positions are looked for twice."""
    if dense.dim() != 2:
        raise EstimateError(f"batches of sparse matrices are not simulated: {ELSEWHERE}")
    mask = dense != 0
    outer, inner = _turned(mask, layout).contiguous().nonzero().unbind(1)
    begins = _TO_CSR(outer, dense.shape[layout is COLUMNS])
    places = _turned(mask, layout).flatten().nonzero().flatten()
    values = _turned(dense, layout).flatten().index_select(0, places)
    return compressed(layout, dense.shape, begins, inner, values)


def _turned(tensor: torch.Tensor, layout: Any) -> torch.Tensor:
    return tensor.t() if layout is COLUMNS else tensor


def in_coordinates(
    kernels: Kernels, tensor: torch.Tensor, *_: Any, layout: Any = None, **__: Any
) -> torch.Tensor:
    """``to_sparse``."""
    if layout in (ROWS, COLUMNS):
        return _laid(kernels, tensor, layout)
    if not is_compressed(tensor):
        return _of_places(tensor)
    first, second, values = compressed_parts(tensor)
    columns = tensor.layout is COLUMNS
    places = _TO_COO(first, second, transpose=columns)
    return _coordinates(tensor, places, values, coalesced=not columns)


def _of_places(dense: torch.Tensor) -> torch.Tensor:
    """Source: SparseTensor.cpp, ``dense_to_sparse``: all dimensions are sparse ones."""
    found = dense.nonzero().t()
    if not found.shape[1]:
        values = dense.new_empty((0,))
        return _coordinates(dense, found.clone(), values, coalesced=True)
    places = found.clone()
    values = dense[tuple(places)].clone()
    return _coordinates(dense, places, values, coalesced=True)


def _coordinates(
    tensor: torch.Tensor, places: torch.Tensor, values: torch.Tensor, *, coalesced: bool
) -> torch.Tensor:
    return like(tensor, places, values, coalesced=coalesced, sides=(tensor.dim(), 0))


def dense(kernels: Kernels, tensor: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    """``sparse_compressed_to_dense``: a batch of one is made coordinates, and these one number."""
    out = torch.zeros(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    first, second = compressed_parts(tensor)[:2]
    one = first.new_empty((1,))
    batch = torch.empty_like(second)
    del one
    whole = _begun(first)
    places = first.new_empty((2, second.numel()), dtype=torch.long)
    torch.empty_like(second)
    sides = [torch.empty_like(second) for _ in range(2)]
    flat = [places.new_empty(second.shape) for _ in range(3)]
    del flat[:2], sides, flat, places, whole, batch
    return out


def _begun(first: torch.Tensor) -> torch.Tensor:
    """Beginnings of all matrices of the batch, after one another."""
    before = first.new_empty((1,))
    moved = [first[1:].clone() for _ in range(3)]
    ends = [torch.empty_like(before) for _ in range(2)]
    whole = torch.empty_like(first)
    del ends[0], moved[0], ends, moved, before
    return whole


MAKES_COMPRESSED = (
    _aten.sparse_compressed_tensor.comp_plain_value_size,
    _aten.sparse_compressed_tensor.comp_plain_value,
)
LAYOUTS: dict[Any, Any] = {
    **dict.fromkeys(MAKES_COMPRESSED, made),
    _aten._to_sparse_csr.default: in_rows,
    _aten._to_sparse_csc.default: in_columns,
    _aten._to_sparse.default: in_coordinates,
}
"""What makes a sparse tensor of others, whatever their layout; each is given ``Kernels``."""
