"""Operators that PyTorch composes of others.

Autograd takes them apart, so they rarely reach a recorder. They do where nothing of autograd is in
the way: under ``torch.inference_mode``, and in the functions that packages run for an operator of
their own.
"""

from __future__ import annotations

from typing import Any

from memcalc.trace.torch_private import has_kernel


def is_composed(func: Any) -> bool:
    """CUDA runs this operator by others."""
    return bool(
        func.namespace == "aten" and func._can_decompose() and not has_kernel(func.name(), "CUDA")
    )
