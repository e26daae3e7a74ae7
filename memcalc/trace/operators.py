"""Operators that fake tensors cannot run, or run otherwise than CUDA does."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

_aten = torch.ops.aten


def _all_nonzero(tensor: torch.Tensor) -> torch.Tensor:
    """Without values every element may be nonzero; that is the most there can be."""
    shape = (tensor.numel(), tensor.dim())
    return torch.empty(shape, dtype=torch.long, device=tensor.device)


def _all_selected(tensor: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Without values every element may be selected; that is the most there can be."""
    shape = torch.broadcast_shapes(tensor.shape, mask.shape)
    return torch.empty(math.prod(shape), dtype=tensor.dtype, device=tensor.device)


def _grouped_mm(
    left: torch.Tensor,
    right: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """CUDA takes every floating type (aten/src/ATen/native/cuda/GroupedBlas.cpp), fakes only bf16.

    Shapes: rows M sorted into G groups; (M, K) x (G, K, N) -> (M, N); (K, M) x (M, N) -> (G, K, N).
    """
    if left.dim() == 2 and right.dim() == 2:
        assert offs is not None
        shape: tuple[int, ...] = (offs.shape[0], left.shape[0], right.shape[1])
    elif left.dim() == 2:
        shape = (left.shape[0], right.shape[-1])
    elif right.dim() == 2:
        shape = (left.shape[1], right.shape[1])
    else:
        shape = (left.shape[0], left.shape[1], right.shape[-1])
    return torch.empty(shape, dtype=out_dtype or left.dtype, device=left.device)


REPLACED: dict[Any, tuple[Callable[..., torch.Tensor], str]] = {
    _aten.masked_select.default: (_all_selected, "every element is taken to be selected"),
    _aten.nonzero.default: (_all_nonzero, "every element is taken to be nonzero"),
}
"""What runs instead, and what is assumed by it (empty: nothing)."""
if hasattr(_aten, "_grouped_mm"):
    REPLACED[_aten._grouped_mm.default] = (_grouped_mm, "")


_KERNELS_ON_CUDA = ("silu_backward", "mish_backward", "_fused_rms_norm")
"""Operators that PyTorch composes of others, but for which CUDA has a kernel of its own.

All there are: those with both a CompositeImplicitAutograd and a CUDA kernel in 2.11 and 2.13.
"""
_libraries: list[torch.library.Library] = []


def install() -> None:
    """Keep operators whole that are whole on CUDA, once per process.

    That there is a kernel is what counts; the fake mode answers before it would run.
    """
    if _libraries:
        return
    library = torch.library.Library("aten", "IMPL")
    for name in _KERNELS_ON_CUDA:
        library.impl(name, _never, "PrivateUse1")
    _libraries.append(library)


def _never(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError("an operator ran outside of the fake mode")
