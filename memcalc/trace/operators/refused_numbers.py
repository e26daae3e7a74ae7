"""Numbers that do not fit the type of a tensor's elements, which fake tensors do not look at.

PyTorch's own conversion of a single number says whether one fits, and in which words it does not.
"""

from __future__ import annotations

from typing import Any

import torch

from memcalc.trace.torch_private.dispatch import without_modes

CONVERTED: dict[str, tuple[int, ...]] = {
    "masked_fill": (2,),
    "fill": (1,),
    "full": (1,),
    "full_like": (1,),
    "new_full": (2,),
    "scalar_tensor": (0,),
    "constant_pad_nd": (2,),
    "threshold": (1, 2),
    "index_fill": (3,),
    "scatter": (3,),
    "linspace": (0, 1),
}
"""Operators that convert numbers to the type of what they make, by the places of these numbers."""


def check(places: tuple[int, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise ``RuntimeError`` in PyTorch's words where a number does not fit.

    Args:
        places: of ``CONVERTED``.
        args: by place.
        kwargs: by name; ``dtype`` may be among them.
    """
    numbers = [args[place] for place in places if place < len(args)]
    kind = kwargs.get("dtype")
    if kind is None and isinstance(args[0], torch.Tensor):
        kind = args[0].dtype
    elif kind is None and any(isinstance(number, float) for number in numbers):
        kind = torch.get_default_dtype()
    if kind is None or kind is torch.bool or kind.is_complex:
        return
    info = torch.iinfo(kind) if not kind.is_floating_point else torch.finfo(kind)
    for number in numbers:
        if isinstance(number, int | float) and not abs(number) <= info.max:
            with without_modes():
                _ask(number, kind)


def _ask(number: float, kind: torch.dtype) -> None:
    """What fills by a mask checks each number, where ``fill_`` of the host lets some pass."""
    there = torch.ones((), dtype=torch.bool, device="cpu")
    torch.zeros((), dtype=kind, device="cpu").masked_fill_(there, number)
