"""Answers comparisons of unknown numbers whose result is equal for all of them."""

import math
from collections.abc import Callable
from typing import Any

import torch

from memcalc.engine.followed_operators import AGAINST_A_NUMBER, COMPARES, Followed

SMALL = 1 << 12
"""Largest tensors, in elements, that are computed even from unknown numbers: the host takes one
microsecond, and a call of PyTorch takes five."""


def constant_answer(
    one: Followed,
    args: Any,
    is_unknown: Callable[[torch.Tensor], bool],
    ends: tuple[float, float],
) -> bool | None:
    """Return a comparison's result if it is equal for all elements of a large unknown tensor.

    Args:
        one: the comparison.
        args: its arguments.
        is_unknown: returns True for a tensor none of whose numbers is known.
        ends: the lowest and the highest of the made-up numbers.

    Returns:
        None if the result differs by element, or the tensor is small or known.
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


def is_finiteness_test(one: Followed, args: Any) -> bool:
    """Return True if a comparison only tests whether numbers are finite.

    Numbers of a sound program are finite, so its answer is no guess.
    """
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
