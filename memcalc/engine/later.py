"""Puts off small operators over made-up numbers until somebody reads their results.

Most programs read few of the numbers that they compute, and a step of a small model has many.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from memcalc.engine.comparisons import SMALL
from memcalc.engine.followed_operators import MOVES, PUTS, Followed
from memcalc.engine.host_view import Place
from memcalc.engine.unknown import Later

if TYPE_CHECKING:
    from memcalc.engine.device_numbers import Numbers

_DEEPEST = 32
"""Operators one after the other that are put off: Python calls each within the next."""


class _CannotWaitError(Exception):
    """An operator has an argument that is not small, or of no plain type."""


def can_wait(one: Followed) -> bool:
    """Return whether an operator makes one new tensor, of numbers that its arguments tell."""
    returns = one.op._schema.returns
    single = len(returns) == 1 and isinstance(returns[0].type, torch._C.TensorType)
    return single and not one.writes and one.draws is None


def put_off(numbers: Numbers, one: Followed, args: Any, kwargs: Any, out: Any) -> bool:
    """Compute the numbers of an operator's result when they are first read.

    Returns:
        Whether it is put off: all its tensors are small, and one of them is made up.
    """
    if type(out) is not torch.Tensor or not out.is_cuda or not out.is_floating_point():
        return False
    if not 0 < out.numel() <= SMALL or not out.is_contiguous():
        return False
    if torch.cuda.is_current_stream_capturing():
        return False
    given: list[Later] = []
    try:
        late_args = _late(numbers, args, given)
        late_kwargs = _late(numbers, kwargs, given) if kwargs else {}
    except _CannotWaitError:
        return False
    if not any(each.made_up for each in given):
        return False
    place = Place.of(out)

    def make() -> torch.Tensor:
        made: torch.Tensor = one.op(*_made(late_args), **_made(late_kwargs))
        if one.base not in PUTS and one.base not in MOVES:
            numbers.make_finite(made, place)
        return made.contiguous()

    depth = 1 + max(each.depth for each in given)
    numbers.unknown.postpone(out, Later(make, depth=depth), made_up=True)
    if depth >= _DEEPEST:
        numbers.settle(out)
    return True


def _late(numbers: Numbers, value: Any, given: list[Later]) -> Any:
    """Return an argument whose tensors are made later."""
    kind = type(value)
    if kind is torch.Tensor or kind is torch.nn.Parameter:
        if value.numel() > SMALL or value.layout is not torch.strided:
            raise _CannotWaitError
        given.append(numbers.later(value))
        return given[-1]
    if kind is list or kind is tuple:
        return [_late(numbers, each, given) for each in value]
    if kind is dict:
        return {
            name: _late(numbers, each, given)
            for name, each in value.items()
            if name != "pin_memory"
        }
    if isinstance(value, torch.Tensor | torch.Generator):
        raise _CannotWaitError
    return torch.device("cpu") if kind is torch.device else value


def _made(value: Any) -> Any:
    """Return an argument with the numbers of its tensors."""
    if type(value) is Later:
        return value()
    if type(value) is list:
        return [_made(each) for each in value]
    if type(value) is dict:
        return {name: _made(each) for name, each in value.items()}
    return value
