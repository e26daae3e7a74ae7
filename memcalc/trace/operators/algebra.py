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


OVERRIDES: dict[Any, tuple[Any, str]] = {_aten.geqrf.default: (_reflectors, "")}
"""What runs instead, and what is assumed by it (empty: nothing)."""
