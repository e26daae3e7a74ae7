"""Operators that PyTorch composes of others.

Autograd takes them apart, so they rarely reach a recorder. They do where nothing of autograd is in
the way: under ``torch.inference_mode``, and in the functions that packages run for an operator of
their own.
"""

from __future__ import annotations

from typing import Any

from memcalc.trace.torch_private import has_kernel

_OWN_KERNEL = frozenset({"aten::silu_backward", "aten::mish_backward"})
"""Operators that other devices compose, and for which CUDA has a kernel: a PyTorch that is built
without CUDA does not know it. Source: ``native_functions.yaml``, 2.13; ``native_channel_shuffle``
alone has a kernel for the CPU and none for CUDA."""


def is_composed(func: Any) -> bool:
    """CUDA runs this operator by others."""
    return bool(
        func.namespace == "aten"
        and func._can_decompose()
        and func.name() not in _OWN_KERNEL
        and not has_kernel(func.name(), "CUDA")
    )
