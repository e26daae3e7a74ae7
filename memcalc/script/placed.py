"""On which of several GPUs arguments of an operator are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch


def first_device(args: Iterable[Any]) -> int | None:
    """The number of the first device among arguments, or of a tensor among them."""
    for arg in args:
        found: int | None = None
        if isinstance(arg, list | tuple):
            found = first_device(arg)
        elif isinstance(arg, torch.device | torch.Tensor):
            place = arg if isinstance(arg, torch.device) else arg.device
            found = place.index if place.type == "cuda" else None
        if found is not None:
            return found
    return None
