"""Operators that PyTorch composes of others.

Autograd takes them apart, so they rarely reach a recorder. They do where nothing of autograd is in
the way: under ``torch.inference_mode``, and in the functions that packages run for an operator of
their own.
"""

from __future__ import annotations

from typing import Any

from memcalc.trace.torch_private.dispatch import has_kernel

KERNELS_ON_CUDA = ("silu_backward", "mish_backward", "_fused_rms_norm")
"""Operators that other devices compose, but for which CUDA has a kernel of its own: a PyTorch that
is built without CUDA does not know it.

All there are: those with both a CompositeImplicitAutograd and a CUDA kernel in 2.11 and 2.13.
"""

_SYMBOLS = "aten::sym_"
"""Sizes that are asked of tensors that hold others; the dispatcher does not know these names."""


def is_composed(func: Any) -> bool:
    """CUDA runs this operator by others.

    That PyTorch can take it apart in Python says nothing: it can do so with some that CUDA runs
    whole, such as ``upsample_nearest2d``.
    """
    name = func._schema.name
    return (
        func.namespace == "aten"
        and not name.startswith(_SYMBOLS)
        and has_kernel(func.name(), "CompositeImplicitAutograd")
        and name.removeprefix("aten::") not in KERNELS_ON_CUDA
        and not has_kernel(func.name(), "CUDA")
    )
