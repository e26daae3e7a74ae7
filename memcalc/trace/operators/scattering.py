"""Means into places, and rows scaled to a norm: what CUDA makes on the way.

Sources: aten/src/ATen/native/ TensorAdvancedIndexing.cpp (``scatter_reduce_two``), cuda/Indexing.cu
(``index_reduce_func_cuda_impl``), Normalization.cpp (``renorm_out``), cuda/SummaryOps.cu
(``_histc_cuda``), 2.13.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from memcalc.trace.operators import deterministic

_aten = torch.ops.aten
_MEAN = "mean"
_SORTED = ("sum", _MEAN)
"""What is put by sorted places where results shall be the same each time."""


def _divided(counts: torch.Tensor) -> None:
    """Places that nothing came to are divided by one."""
    counts == 0  # noqa: B015


def _scatter_reduced(*, in_place: bool) -> Callable[..., Any]:
    """Sums are a kernel alone, unless they are sorted; others are always."""

    def reduced(
        tensor: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, reduce: str,
        *, include_self: bool = True,
    ) -> Any:  # fmt: skip
        sorts = deterministic.is_wanted() and reduce in _SORTED
        if reduce != _MEAN and not sorts:
            return NotImplemented
        out = tensor if in_place else torch.empty_like(tensor)
        if sorts:
            deterministic.scatter(out, dim, index, source, adds=True)
        if reduce == _MEAN:
            ones, counts = torch.empty_like(source), torch.empty_like(out)
            counts.scatter_add_(dim, index, ones)
            _divided(counts)
            del counts, ones
        return out

    return reduced


def _index_reduced(*, in_place: bool) -> Callable[..., Any]:
    """Means; others are kernels alone."""

    def reduced(
        tensor: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, reduce: str,
        *, include_self: bool = True,
    ) -> Any:  # fmt: skip
        if reduce != _MEAN:
            return NotImplemented
        out = tensor if in_place else torch.empty_like(tensor)
        counts = torch.empty_like(out)
        torch.empty_like(source)
        _divided(counts)
        del counts
        return out

    return reduced


def _renorm(tensor: torch.Tensor, p: Any, dim: int, maxnorm: Any) -> torch.Tensor:
    return _scaled(torch.empty_like(tensor), tensor, p, dim)


def _renorm_(tensor: torch.Tensor, p: Any, dim: int, maxnorm: Any) -> torch.Tensor:
    return _scaled(tensor, tensor, p, dim)


def _scaled(out: torch.Tensor, tensor: torch.Tensor, p: Any, dim: int) -> torch.Tensor:
    """Norms of 16-bit rows are fp32, and scales of their own."""
    others = [at for at in range(tensor.dim()) if at != dim % tensor.dim()]
    narrow = tensor.element_size() == 2
    kept = {"keepdim": True, "dtype": torch.float32 if narrow else None}
    norms = torch.linalg.vector_norm(tensor, p, others, **kept)
    scales = torch.empty_like(norms, dtype=tensor.dtype) if narrow else None
    del scales, norms
    return out


def _histogram(
    tensor: torch.Tensor,
    bins: int = 100,
    min: float = 0,
    max: float = 0,
) -> torch.Tensor:
    """Between the least and the largest, where it is not said between which."""
    out = tensor.new_empty(bins)
    if min == max and tensor.numel():
        ends = tensor.aminmax()
        del ends
    return out


OVERRIDES: dict[Any, tuple[Any, str]] = {
    _aten.scatter_reduce.two: (_scatter_reduced(in_place=False), ""),
    _aten.scatter_reduce_.two: (_scatter_reduced(in_place=True), ""),
    _aten.index_reduce.default: (_index_reduced(in_place=False), ""),
    _aten.index_reduce_.default: (_index_reduced(in_place=True), ""),
    _aten.renorm.default: (_renorm, ""),
    _aten.renorm_.default: (_renorm_, ""),
    _aten.histc.default: (_histogram, ""),
}
"""What runs instead, and what is assumed by it (empty: nothing)."""
