"""Operators that behave otherwise on symbols than on numbers, set right.

Each one here was found by comparing a symbolic trace with a plain one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_aten = torch.ops.aten


def _slice_backward(
    grad: torch.Tensor, sizes: Any, dim: int, start: Any, end: Any, step: Any
) -> torch.Tensor:
    """Indexing by a full slice makes no node in the graph, unless the size is a symbol.

    Source: torch/csrc/autograd/python_variable_indexing.cpp, ``applySlice``.
    """
    if start == 0 and step == 1 and end >= sizes[dim]:
        return grad
    return _aten.slice_backward.default(grad, sizes, dim, start, end, step)  # type: ignore[no-any-return]


def _constant_pad(tensor: torch.Tensor, pad: Any, value: Any = 0) -> torch.Tensor:
    """The fake kernel turns symbols into numbers; the output is a fresh contiguous tensor."""
    shape = list(tensor.shape)
    for index in range(len(pad) // 2):
        shape[-1 - index] = shape[-1 - index] + pad[2 * index] + pad[2 * index + 1]
    return torch.empty(shape, dtype=tensor.dtype, device=tensor.device)


SYMBOLIC_KERNELS: dict[Any, Callable[..., Any]] = {
    _aten.slice_backward.default: _slice_backward,
    _aten.constant_pad_nd.default: _constant_pad,
}
