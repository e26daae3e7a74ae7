"""Linear algebra that fake tensors do not know."""

from __future__ import annotations

from typing import Any

import torch

_aten = torch.ops.aten


def _reflectors(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """``geqrf``: matrices lie in columns, as its library wants them.

    Source: aten/src/ATen/native/BatchLinearAlgebra.cpp, ``geqrf`` (2.13).
    """
    *batch, rows, columns = tensor.shape
    made = tensor.new_empty((*batch, columns, rows)).mT
    return made, tensor.new_empty((*batch, min(rows, columns)))


def _pseudo_inverse(
    tensor: torch.Tensor,
    *,
    atol: torch.Tensor | None = None,
    rtol: torch.Tensor | None = None,
    hermitian: bool = False,
) -> Any:
    """Step by step, as ``linalg_pinv`` of LinearAlgebra.cpp (2.13)."""
    if not tensor.numel():
        return NotImplemented
    real, place = tensor.real.dtype if tensor.is_complex() else tensor.dtype, tensor.device
    least = torch.zeros((), dtype=torch.double, device=place) if atol is None else atol
    share = torch.full((), 1.0, dtype=torch.double, device=place) if rtol is None else rtol
    if hermitian:
        values, vectors = torch.linalg.eigh(tensor)
        sizes = values.abs()
        largest = sizes.amax(-1, keepdim=True)
        left, right = vectors, vectors.mH
    else:
        vectors, values, rows = torch.linalg.svd(tensor, full_matrices=False)
        sizes, largest = values, values.narrow(-1, 0, 1)
        left, right = rows.mH, vectors.mH
    limit = torch.maximum(least.unsqueeze(-1), share.unsqueeze(-1) * largest)
    inverse = torch.where(
        sizes > limit, values.reciprocal(), torch.zeros((), dtype=real, device=place)
    ).to(tensor.dtype)
    return torch.matmul(left * inverse.unsqueeze(-2), right)


OVERRIDES: dict[Any, tuple[Any, str]] = {
    _aten.geqrf.default: (_reflectors, ""),
    _aten.linalg_pinv.atol_rtol_tensor: (_pseudo_inverse, ""),
}
"""What runs instead, and what is assumed by it (empty: nothing)."""
