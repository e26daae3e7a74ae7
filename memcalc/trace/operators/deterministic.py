"""What puts values into places where results shall be the same from run to run: sorted, as puts.

``torch.use_deterministic_algorithms`` asks for it. Sources: aten/src/ATen/native/
TensorAdvancedIndexing.cpp (``_scatter_via_index_put``), cuda/Indexing.cu
(``index_add_cuda_impl``), TensorAdvancedIndexing.cpp (``index_copy_out``), 2.13.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from memcalc.trace import device

_aten = torch.ops.aten
_put = _aten.index_put_.default


def is_wanted() -> bool:
    """A GPU's kernels shall give the same results each time."""
    return device.NAME != "cpu" and torch.are_deterministic_algorithms_enabled()


def is_strict() -> bool:
    """What cannot give them is an error; attention goes by this, and not where it is warned of."""
    return is_wanted() and not torch.is_deterministic_algorithms_warn_only_enabled()


def scatter(
    out: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, *, adds: bool
) -> torch.Tensor:
    """Put or add values into places along a dimension.

    Where places are the same across all other dimensions, by one index; else by one for each.

    Shapes: index (I...), of as many dimensions as out; source at least as large as index.
    """
    if not index.numel():
        return out
    dim %= max(out.dim(), 1)
    others = [at for at in range(index.dim()) if at != dim]
    shown = source.as_strided(index.shape, source.stride())
    indices: list[torch.Tensor | None] = [None] * dim
    if all(index.stride(at) == 0 for at in others):
        along = index
        for at in reversed(others):
            along = along.select(at, 0)
        indices.append(along)
    else:
        indices = [index if at == dim else _counted(index, at) for at in range(index.dim())]
    _put(out, indices, shown, adds)
    return out


def _counted(index: torch.Tensor, at: int) -> torch.Tensor:
    """Numbers along one dimension, spread over the others."""
    size = index.shape[at]
    shape = [size if one == at else 1 for one in range(index.dim())]
    numbers = torch.arange(size, dtype=index.dtype, device=index.device)
    return numbers.view(shape).expand(index.shape)


def _scatter(*, adds: bool, in_place: bool) -> Callable[..., Any]:
    def run(
        tensor: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor,
        *, reduce: str | None = None,
    ) -> Any:  # fmt: skip
        if not is_wanted() or reduce not in (None, "add"):
            return NotImplemented
        out = tensor if in_place else tensor.new_empty(tensor.shape)
        return scatter(out, dim, index, source, adds=adds or reduce is not None)

    return run


def _along(*, adds: bool, in_place: bool) -> Callable[..., Any]:
    """Whole slices along a dimension."""

    def run(
        tensor: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor,
        *, alpha: float = 1,
    ) -> Any:  # fmt: skip
        if not is_wanted():
            return NotImplemented
        out = tensor if in_place else tensor.new_empty(tensor.shape)
        places = [*[None] * (dim % max(tensor.dim(), 1)), index]
        return _put(out, places, source * alpha if adds else source, adds)

    return run


INSTEAD: dict[Any, Callable[..., Any]] = {
    _aten.scatter.src: _scatter(adds=False, in_place=False),
    _aten.scatter_.src: _scatter(adds=False, in_place=True),
    _aten.scatter.reduce: _scatter(adds=False, in_place=False),
    _aten.scatter_.reduce: _scatter(adds=False, in_place=True),
    _aten.scatter_add.default: _scatter(adds=True, in_place=False),
    _aten.scatter_add_.default: _scatter(adds=True, in_place=True),
    _aten.index_add.default: _along(adds=True, in_place=False),
    _aten.index_add_.default: _along(adds=True, in_place=True),
    _aten.index_copy.default: _along(adds=False, in_place=False),
    _aten.index_copy_.default: _along(adds=False, in_place=True),
}
"""What runs instead; it may return ``NotImplemented``: the operator itself runs."""
