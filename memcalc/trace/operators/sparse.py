"""Sparse tensors in coordinates, as gradients of ``nn.Embedding(sparse=True)``, on CUDA.

They have no memory but that of their indices and values, which are tensors of their own. Shapes: N
positions, S sparse dimensions; indices (S, N), values (N, ...).

Sources: aten/src/ATen/native/sparse/ SparseTensor.cpp, SparseTensorMath.cpp and
cuda/SparseCUDATensor.cu, cuda/SparseCUDATensorMath.cu; in which order they allocate was recorded
with PyTorch 2.11 and 2.13.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from memcalc.errors import EstimateError
from memcalc.kernels.formulas import KernelCall
from memcalc.trace.operators.sparse_compressed import AS_COMPRESSED_ARE, on_compressed
from memcalc.trace.operators.sparse_layouts import LAYOUTS
from memcalc.trace.operators.sparse_merged import MERGED, met
from memcalc.trace.operators.sparse_parts import (
    CLONE,
    DETACH,
    MAKES,
    both_parts,
    cloned,
    flattened,
    is_compressed,
    is_sparse,
    like,
)
from memcalc.trace.operators.sparse_products import PRODUCTS

ALL_DIFFER = (
    "all positions of a sparse gradient are taken to differ, as long as there are that many rows; "
    "rows that repeat in a batch take less"
)
_aten = torch.ops.aten


class SparseKernels:
    """Run operators on sparse tensors by what CUDA does to their parts.

    Args:
        scratch: takes and gives back what a kernel needs beside its outputs.
        all_alike: positions are taken to be none, as they seem where nothing computes them.
        assume: notes an assumption.
    """

    def __init__(
        self,
        scratch: Callable[[KernelCall], None],
        assume: Callable[[str], None],
        all_alike: bool,
    ) -> None:
        self.take = scratch
        self._assume = assume
        self._none_left = all_alike

    def __call__(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator.

        Raises:
            EstimateError: what CUDA does there is not known.
        """
        if func in LAYOUTS:
            return LAYOUTS[func](self, *args, **kwargs)
        if any(map(is_compressed, args)):
            return on_compressed(self, func, args, kwargs)
        if func is _aten._coalesce.default:
            return self.coalesce(*args)
        if func in _ON_UNIQUE:
            first = args[0] if args[0].is_coalesced() else self.coalesce(args[0])
            return _ON_UNIQUE[func](first, *args[1:], **kwargs)
        if func in PRODUCTS:
            return PRODUCTS[func](self, *args, **kwargs)
        if func in MERGED:
            return MERGED[func](self, *args, **kwargs)
        name = func._schema.name.removeprefix("aten::")
        if name in _NOT_ON_CUDA:
            raise EstimateError(f"PyTorch cannot run {_NOT_ON_CUDA[name]}")
        if name.startswith("_foreach_"):
            return _one_by_one(getattr(_aten, name.removeprefix("_foreach_")), args, kwargs)
        if func not in _KERNELS:
            raise EstimateError(
                f"{func._schema.name} of sparse tensors is not simulated: measure the run with "
                "memcalc run, or simulate a script with --backend driver; gradients of an "
                "embedding are dense with sparse=False, and take more"
            )
        return _KERNELS[func](*args, **kwargs)

    def coalesce(self, tensor: torch.Tensor) -> torch.Tensor:
        """Each position once. Source: SparseCUDATensor.cu, ``_coalesce_sparse_cuda``."""
        count, depth = tensor._nnz(), tensor.sparse_dim()
        if count < 2:
            return cloned(tensor, coalesced=True)
        given, values = both_parts(tensor)
        flat = flattened(given)
        order, first = (given.new_empty((count,)) for _ in range(2))
        self.take(KernelCall("coalesce_sort", (count,)))
        self.take(KernelCall("coalesce_unique", (count,)))
        self._assume(ALL_DIFFER)
        left = 0 if self._none_left else min(count, math.prod(tensor.shape[:depth]))
        summed = values.new_empty((left, *values.shape[1:]))
        indices = flat[:left].unsqueeze(0)
        if depth > 1:
            indices = given.new_empty((depth, left))
        del first, order, flat
        return like(tensor, indices, summed, coalesced=True)


def takes_nothing(func: Any, args: tuple[Any, ...]) -> bool:
    """An operator that only looks at a sparse tensor, or gives out its parts."""
    return func in AS_THEY_ARE or (func in AS_COMPRESSED_ARE and is_compressed(args[0]))


def _one_by_one(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Lists with sparse tensors go the slow way (ForeachUtils.h, ``can_use_fast_route``)."""
    made = [
        func(*(arg[index] if isinstance(arg, list | tuple) else arg for arg in args), **kwargs)
        for index in range(len(args[0]))
    ]
    return None if func.__name__.endswith("_") else made


def _become(tensor: torch.Tensor, made: torch.Tensor) -> torch.Tensor:
    """What an operator in place leaves: other parts in the same tensor."""
    tensor.data = made
    return tensor


def _detach(tensor: torch.Tensor) -> torch.Tensor:
    """Another tensor of the same parts."""
    return like(tensor, *both_parts(tensor))


def _cast(tensor: torch.Tensor, *, dtype: Any = None, **_: Any) -> torch.Tensor:
    indices, values = both_parts(tensor)
    indices = indices.clone()
    return like(tensor, indices, values.to(dtype or values.dtype, copy=True))


def _scaled(tensor: torch.Tensor, by: Any, *_: Any, **__: Any) -> torch.Tensor:
    """Times or divided by one number, or times another of the same positions."""
    if is_sparse(by) and by.is_coalesced():
        return met(tensor, by)
    _one(by)
    indices, values = both_parts(tensor)
    indices = indices.clone()
    return like(tensor, indices, torch.empty_like(values))


def _scale_in_place(tensor: torch.Tensor, by: Any) -> torch.Tensor:
    return _become(tensor, _scaled(tensor, by))


def _divide_in_place(tensor: torch.Tensor, by: Any, **_: Any) -> torch.Tensor:
    _one(by)
    return tensor


def _one(by: Any) -> None:
    if isinstance(by, torch.Tensor) and by.dim():
        raise EstimateError(
            "the product of a sparse tensor and one of several elements is not simulated: measure "
            "the run with memcalc run"
        )


def _negative(tensor: torch.Tensor) -> torch.Tensor:
    return cloned(tensor)


def _zero(tensor: torch.Tensor) -> torch.Tensor:
    indices, values = both_parts(tensor)
    none = indices.new_empty((indices.shape[0], 0)), values.new_empty((0, *values.shape[1:]))
    return _become(tensor, like(tensor, *none, coalesced=True))


def _none_like(tensor: torch.Tensor, **_: Any) -> torch.Tensor:
    return _zero(_detach(tensor))


def _dense(tensor: torch.Tensor, dtype: Any = None, *_: Any, **__: Any) -> torch.Tensor:
    kind = dtype or tensor.dtype
    dense = torch.zeros(tensor.shape, dtype=kind, device=tensor.device)
    return _add_to(dense, tensor, dense)


def _add(left: torch.Tensor, right: torch.Tensor, *, alpha: Any = 1) -> torch.Tensor:
    if is_sparse(left) and is_sparse(right):
        return _joined(left, right, alpha)
    if is_sparse(left):
        raise EstimateError("add of a sparse and a dense tensor: PyTorch takes the dense one first")
    out = torch.empty_like(left, dtype=torch.promote_types(left.dtype, right.dtype))
    return _add_to(out, right, left)


def _subtract(left: torch.Tensor, right: torch.Tensor, *, alpha: Any = 1) -> torch.Tensor:
    return _add(left, right, alpha=-alpha)


def _add_in_place(left: torch.Tensor, right: torch.Tensor, *, alpha: Any = 1) -> torch.Tensor:
    if is_sparse(left):
        return _become(left, _add(left, right, alpha=alpha))
    return _add_to(left, right, left)


def _subtract_in_place(left: torch.Tensor, right: torch.Tensor, *, alpha: Any = 1) -> torch.Tensor:
    return _add_in_place(left, right, alpha=-alpha)


def _add_to(dense: torch.Tensor, tensor: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
    """Into a dense tensor; what has another type is cast first, and values lie in rows.

    Positions that may repeat become single numbers. ``first`` is what it is added to.
    Source: SparseCUDATensorMath.cu, ``add_out_dense_sparse_cuda`` (2.13).
    """
    common = torch.promote_types(dense.dtype, tensor.dtype)
    result = dense if dense.dtype == common else torch.empty_like(dense, dtype=common)
    buffer = first.to(common)
    indices, values = both_parts(tensor)
    values = values.to(common)
    unique = tensor.is_coalesced()
    rows = values.contiguous() if unique else values
    places = None if unique or len(indices) == 1 else flattened(indices)
    del result, buffer, values, rows, places
    return dense


def _joined(left: torch.Tensor, right: torch.Tensor, alpha: Any) -> torch.Tensor:
    """Positions of both, one after the other: nothing is summed before it is coalesced."""
    common = torch.promote_types(left.dtype, right.dtype)
    (indices, values), (others, more) = both_parts(left), both_parts(right)
    more = more.to(common)
    if alpha != 1:
        more = more.mul(alpha)
    places = torch.cat((indices, others), 1)
    return like(left, places, torch.cat((values.to(common), more)), coalesced=False)


def _masked(dense: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The dense tensor's values at the positions of another: their product with ones."""
    if not mask._nnz():
        return _none_like(mask)
    if is_sparse(dense):
        return met(dense, mask)
    indices, values = both_parts(mask)
    one = dense.new_empty((1,))
    taken = values.new_empty(values.shape, dtype=dense.dtype)
    indices = indices.clone()
    result = like(mask, indices, torch.empty_like(taken))
    del taken, one
    return result


def _power(tensor: torch.Tensor, exponent: Any) -> torch.Tensor:
    return _scaled(tensor, exponent)


def _norm(tensor: torch.Tensor, exponent: Any = 2, *_: Any, **__: Any) -> torch.Tensor:
    found: torch.Tensor = _aten.norm.Scalar(both_parts(tensor)[1], exponent)
    return found


def _sum(tensor: torch.Tensor, *, dtype: Any = None) -> torch.Tensor:
    return both_parts(tensor)[1].sum(dtype=dtype)


AS_THEY_ARE = {
    MAKES,
    *(_aten._indices.default, _aten._values.default, _aten.indices.default, _aten.values.default),
    *(_aten.is_coalesced.default, _aten._coalesced_.default, _aten._nnz.default),
    *(_aten.sparse_dim.default, _aten.dense_dim.default),
    _aten._has_compatible_shallow_copy_type.default,
}
"""Operators that take nothing."""
_ON_UNIQUE: dict[Any, Callable[..., Any]] = {
    _aten.pow.Tensor_Scalar: _power,
    **{getattr(_aten.norm, name): _norm for name in ("Scalar", "ScalarOpt_dim")},
}
"""Operators that coalesce first."""
_NOT_ON_CUDA = dict.fromkeys(
    ("_foreach_norm", "linalg_vector_norm"),
    "the norm of sparse gradients on CUDA, which clipping needs: leave max_grad_norm out",
)
"""Operators that PyTorch refuses (2.11 and 2.13), and what a program wants them for."""
_KERNELS: dict[Any, Callable[..., Any]] = {
    CLONE: cloned,
    **dict.fromkeys((DETACH, _aten.alias.default), _detach),
    _aten._to_copy.default: _cast,
    **dict.fromkeys((_aten.mul.Tensor, _aten.mul.Scalar, _aten.div.Tensor), _scaled),
    **dict.fromkeys((_aten.mul_.Tensor, _aten.mul_.Scalar), _scale_in_place),
    _aten.div_.Tensor: _divide_in_place,
    _aten.neg.default: _negative,
    _aten.zero_.default: _zero,
    **dict.fromkeys((_aten.zeros_like.default, _aten.empty_like.default), _none_like),
    _aten._to_dense.default: _dense,
    _aten.add.Tensor: _add,
    _aten.add_.Tensor: _add_in_place,
    _aten.sub.Tensor: _subtract,
    _aten.sub_.Tensor: _subtract_in_place,
    _aten.sparse_mask.default: _masked,
    **dict.fromkeys((_aten.sum.default, _aten._sparse_sum.default), _sum),
}
"""What runs instead of others."""
