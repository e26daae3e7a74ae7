"""Comparisons of unknown numbers that have one answer for all of them, at any size."""

import math
from collections.abc import Callable
from typing import Any

import torch

from memcalc.engine.followed_operators import AGAINST_A_NUMBER, COMPARES, Followed

SMALL = 1 << 12
"""Elements of the largest tensors whose numbers are computed even from unknown ones: a microsecond
each, where a call of PyTorch's takes five."""


def everywhere(
    one: Followed,
    args: Any,
    is_unknown: Callable[[torch.Tensor], bool],
    ends: tuple[float, float],
) -> bool | None:
    """Return what a comparison answers for each unknown number, or None if it depends.

    Args:
        one: the comparison.
        args: what it is called with.
        is_unknown: tells of which tensors no number is known.
        ends: the lowest and the highest number that stand in.
    """
    first, others = args[0], args[1:]
    if not isinstance(first, torch.Tensor) or first.numel() <= SMALL:
        return None
    if not (first.is_cuda and first.is_floating_point() and is_unknown(first)):
        return None
    if one.base.startswith("is"):
        return False
    if one.base not in AGAINST_A_NUMBER or not others:
        return None
    other = others[0]
    if isinstance(other, torch.Tensor):
        if other.is_cuda and one.base in ("eq", "ne") and other.data_ptr() == first.data_ptr():
            return one.base == "eq"
        return None
    found = one.op(torch.tensor(ends, device="cpu"), other).tolist()
    return bool(found[0]) if found[0] == found[1] else None


def asks_whether_finite(one: Followed, args: Any) -> bool:
    """Numbers that nobody computes are finite, as a sound program's are: that is no guess."""
    if one.base not in COMPARES:
        return False
    if one.base.startswith("is"):
        return True
    if one.base in AGAINST_A_NUMBER and len(args) > 1:
        other = args[1]
        if isinstance(other, torch.Tensor):
            return isinstance(args[0], torch.Tensor) and other.data_ptr() == args[0].data_ptr()
        return isinstance(other, float) and not math.isfinite(other)
    return False
