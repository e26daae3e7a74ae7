"""Defers small operators over made-up numbers until their results are read.

Most programs read few of the numbers that they compute, and a step of a small model computes many.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from memcalc.engine.host_view import Place, fills_storage, is_plain, map_tensors, tensors_in
from memcalc.engine.values.known import KNOWN, Numbers
from memcalc.engine.values.rules import (
    COMPARES,
    FILLS,
    MOVES,
    PUT,
    PUTS,
    PUTS_BY_INDEX,
    SMALL,
    SORTS,
    Followed,
)
from memcalc.engine.values.unknown import DEEPEST, Later

_WAITS = 1 << 16
"""Elements above which a ``where`` waits: smaller ones are computed in less time."""


class _CannotWaitError(Exception):
    """The error for an operator with an argument that is large, or no plain tensor."""


def can_wait_large(numbers: Numbers, one: Followed, args: Any, out: Any) -> bool:
    """Return True for a large mask, for masked scores, and for what follows from postponed numbers.

    Attention makes a large mask in every layer, and nothing but its kernels reads the scores. Data
    parallelism copies all weights to buckets and back, and nothing reads them.
    """
    if one.base == "where":
        return len(args) == 3 and bool(out.numel() > _WAITS)
    if one.given_result or not isinstance(out, torch.Tensor) or out.numel() <= SMALL:
        return False
    if one.writes:
        return one.base in FILLS and fills_storage(out) and not numbers.read_mark(out)
    if not one.makes_one or one.base in FILLS:
        return one.makes_one
    given = tensors_in(args)
    if one.base == "add" and not all(map(numbers.read_mark, given)):
        return True
    return any(map(numbers.postponed_numbers, given))


def takes_unknown(numbers: Numbers, one: Followed, args: Any, tensor: torch.Tensor) -> bool:
    """Return True if an operator is computed of a large unknown tensor, its argument, at once."""
    if one.base in PUTS_BY_INDEX:
        return tensor is args[0] and numbers.state(args[2]) == KNOWN
    return one.base in COMPARES or (one.base in PUTS and not _takes_long(one, tensor))


def _takes_long(one: Followed, tensor: torch.Tensor) -> bool:
    return one.base in SORTS and tensor.numel() > PUT


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
    if depth >= DEEPEST and made_up and most > SMALL:
        numbers.unknown.drop(out)
        return True
    at = out.data_ptr() if made_up and one.base not in PUTS and one.base not in MOVES else None
    make = functools.partial(_compute_late, numbers, one, late_args, late_kwargs, at)
    if most > SMALL:
        numbers.unknown.forget_freed()  # Each holds a copy of its condition.
    numbers.unknown.postpone(out, Later(make, depth=depth + 1), made_up=made_up)
    if depth >= DEEPEST:
        numbers.settle(out)
    return True


def _compute_late(
    numbers: Numbers, one: Followed, args: Any, kwargs: Any, at: int | None
) -> torch.Tensor:
    """Compute a deferred result; ``at``: where it lies, if infinite values of it are replaced."""
    first, *others = _resolve(args)
    given = first.clone() if one.writes else first
    made: torch.Tensor = one.op(given, *others, **_resolve(kwargs))
    if at is not None:
        place = Place(at, made.shape, made.stride(), made.dtype)
        numbers.make_finite(made, place, tensors_in((first, others)))
    return made.contiguous()


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
