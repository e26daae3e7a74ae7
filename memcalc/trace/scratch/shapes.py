"""What readers of arguments ask of tensors, and the kernel calls that many of them find."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch

from memcalc.kernels.formulas import KernelCall

Reader = Callable[[tuple[Any, ...], Any], KernelCall | None]
"""Finds a kernel call in an operator's arguments and output; ``None`` where there is none."""


def fixed(before: tuple[int, ...] = (), after: tuple[int, ...] = ()) -> KernelCall:
    """A call that takes these, before and after its outputs are made."""
    return KernelCall("fixed", (before, after))


def bytes_of(tensor: torch.Tensor) -> int:
    """Bytes of a tensor's elements."""
    return tensor.numel() * tensor.element_size()


def is_dense(tensor: torch.Tensor) -> bool:
    """From the first to the last element lie no others, and none twice."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return sum((size - 1) * stride for size, stride in pairs) + 1 == tensor.numel()


def lies_in_one_row(tensor: torch.Tensor) -> bool:
    """All of it is one step from the next, so that ``reshape(-1)`` is a view."""
    sides = [
        (size, step) for size, step in zip(tensor.shape, tensor.stride(), strict=True) if size != 1
    ]
    return tensor.numel() == 0 or all(
        step == inner * below for (_, step), (inner, below) in pairwise(sides)
    )


def is_empty(args: tuple[Any, ...]) -> bool:
    """One of the tensors has no elements: no kernel runs and no library is asked."""
    return any(isinstance(arg, torch.Tensor) and 0 in arg.shape for arg in args)
