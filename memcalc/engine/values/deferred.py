"""Defers small operators over made-up numbers until their results are read.

Most programs read few of the numbers that they compute, and a step of a small model computes many.
"""

from __future__ import annotations

from typing import Any

import torch

from memcalc.engine.host_view import Place, is_plain, map_tensors, tensors_in
from memcalc.engine.values.known import KNOWN, Numbers
from memcalc.engine.values.rules import (
    COMPARES,
    MOVES,
    PUT,
    PUTS,
    PUTS_BY_INDEX,
    SMALL,
    Followed,
)
from memcalc.engine.values.unknown import DEEPEST, Later

_WAITS = 1 << 16
"""Elements above which a ``where`` waits: smaller ones are computed in less time."""


class _CannotWaitError(Exception):
    """The error for an operator with an argument that is large, or no plain tensor."""


def can_defer(one: Followed) -> bool:
    """Return True if an operator returns one new tensor that depends only on its arguments."""
    returns = one.op._schema.returns
    single = len(returns) == 1 and isinstance(returns[0].type, torch._C.TensorType)
    return single and not one.writes and one.draws is None


def can_wait_large(numbers: Numbers, one: Followed, args: Any, out: Any) -> bool:
    """Return True for a large mask, and for postponed numbers that are laid out anew.

    Fused attention makes a large mask in every layer, and nothing but its kernel reads it. Data
    parallelism copies all weights to buckets and back, and nothing reads them.
    """
    if one.base == "where":
        return len(args) == 3 and bool(out.numel() > _WAITS)
    if one.base not in MOVES or one.writes or out.numel() <= SMALL:
        return False
    return any(numbers.postponed_numbers(each) for each in tensors_in(args))


def takes_unknown(numbers: Numbers, one: Followed, args: Any, tensor: torch.Tensor) -> bool:
    """Return True if an operator is computed of a large unknown tensor, its argument, at once."""
    if one.base not in PUTS_BY_INDEX:
        return one.base in PUTS or one.base in COMPARES
    return tensor is args[0] and tensor.numel() <= PUT and numbers.state(args[2]) == KNOWN


def defer(
    numbers: Numbers, one: Followed, args: Any, kwargs: Any, out: Any, *, most: int = SMALL
) -> bool:
    """Delay an operator's result until it is first read, if no tensor is larger than ``most``.

    Args:
        numbers: the numbers of all tensors.
        one: the operator.
        args: its positional arguments.
        kwargs: its keyword arguments.
        out: its result.
        most: elements of its largest tensor.

    Returns:
        True if it is deferred. A small one with known numbers alone is not.
    """
    if not _can_wait(out, most) or torch.cuda.is_current_stream_capturing():
        return False
    depth, made_up = 0, False

    def wait(tensor: torch.Tensor) -> Later:
        nonlocal depth, made_up
        if tensor.numel() > most or not is_plain((tensor,)):
            raise _CannotWaitError
        found = numbers.later(tensor)
        depth, made_up = max(depth, found.depth), made_up or found.made_up
        return found

    try:
        late_args, late_kwargs = map_tensors(args, wait), map_tensors(kwargs, wait)
    except _CannotWaitError:
        return False
    if not made_up and most == SMALL:
        return False
    address = out.data_ptr()

    def make() -> torch.Tensor:
        made: torch.Tensor = one.op(*_resolve(late_args), **_resolve(late_kwargs))
        if made_up and one.base not in PUTS and one.base not in MOVES:
            numbers.make_finite(made, Place(address, made.shape, made.stride(), made.dtype))
        return made.contiguous()

    if most > SMALL:
        numbers.unknown.forget_freed()  # Each holds a copy of its condition.
    numbers.unknown.postpone(out, Later(make, depth=depth + 1), made_up=made_up)
    if depth >= DEEPEST:
        numbers.settle(out)
    return True


def _can_wait(out: Any, most: int) -> bool:
    """Return True for a contiguous float tensor on the GPU of 1 to ``most`` elements."""
    if type(out) is not torch.Tensor or not out.is_cuda or not out.is_floating_point():
        return False
    return 0 < out.numel() <= most and out.is_contiguous()


def _resolve(value: Any) -> Any:
    """Return an argument with its deferred tensors computed."""
    kind = type(value)
    if kind is Later:
        return value()
    if kind is list or kind is tuple:
        return kind(map(_resolve, value))
    if kind is dict:
        return {name: _resolve(each) for name, each in value.items()}
    return value
