"""What a script fills by the pattern of a weight on the host, which has no numbers itself.

Masks and whole numbers that are made so (``weight.new_zeros(n, dtype=torch.bool)``) decide sizes
later on, and are real. Those of floating point are as a weight is: there may be many.
"""

from __future__ import annotations

from typing import Any

import torch

_aten = torch.ops.aten
_NEW = {
    _aten.new_zeros.default: 0,
    _aten.new_ones.default: 1,
    _aten.new_full.default: None,
    _aten.zeros_like.default: 0,
    _aten.ones_like.default: 1,
    _aten.full_like.default: None,
}
"""Operators and the number they fill with; ``None``: the one they are given last."""


def filled(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor | None:
    """A real tensor of the host; ``None``: it is none of these.

    Args:
        func: the operator.
        args: the pattern, and what else it is given.
        kwargs: likewise.
    """
    if func not in _NEW:
        return None
    pattern = args[0]
    dtype = kwargs.get("dtype") or pattern.dtype
    device = kwargs.get("device") or pattern.device
    if dtype.is_floating_point or dtype.is_complex or torch.device(device).type != "cpu":
        return None
    number = _NEW[func]
    if number is None:
        number = args[-1] if len(args) > 1 else kwargs["fill_value"]
    like = func.name().endswith("_like")
    return torch.full(pattern.shape if like else args[1], number, dtype=dtype, device="cpu")
