"""Products that PyTorch refuses on a GPU that cannot run them, in its own words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_aten = torch.ops.aten
_Capability = tuple[int, int]
_FLOAT8_SINCE, _WIDENS_SINCE = (8, 9), (8, 0)


def _eight_bits(capability: _Capability, *_: Any) -> str:
    """Source: native/cuda/ScaledBlas.cpp, ``_scaled_mm_allowed_device`` (2.13)."""
    if capability >= _FLOAT8_SINCE:
        return ""
    return (
        "torch._scaled_mm is only supported on CUDA devices with compute capability >= 9.0 or "
        "8.9, or ROCm MI300+"
    )


def _widened(name: str) -> Callable[..., str]:
    """A product that cuBLASLt adds a row to is not asked.

    Source: cuda/CUDABlas.cpp, ``bgemm<at::BFloat16, float>`` and ``gemm`` (2.13); seen with 7.5.
    """

    def refused(capability: _Capability, *args: Any) -> str:
        tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
        narrow = tensors[-1].dtype is torch.bfloat16 and torch.float32 in args
        if capability >= _WIDENS_SINCE or not narrow or tensors[0].dim() == 1:
            return ""
        return (
            f"{name} input type at::BFloat16 and output type float is only supported for CUDA "
            "devices with compute capability 8.0 or higher"
        )

    return refused


_PRODUCTS = (("gemm", "mm"), ("gemm", "addmm"), ("bgemm", "bmm"), ("bgemm", "baddbmm"))
REFUSED: dict[Any, Callable[..., str]] = {
    _aten._scaled_mm.default: _eight_bits,
    **{
        getattr(getattr(_aten, name), overload): _widened(called)
        for called, name in _PRODUCTS
        for overload in ("dtype", "dtype_out")
        if overload in getattr(_aten, name).overloads()
    },
}
"""What an operator ends with on a GPU of a capability; empty: it runs."""
