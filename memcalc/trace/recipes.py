"""How tensors came about, as recipes that are run on the CPU with zeros where they begin."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch

from memcalc.trace.ties import CHOOSES, Turns
from memcalc.trace.torch_private.dispatch import without_dispatch, without_modes

LARGEST = 1 << 27
"""Bytes of a tensor of zeros that an answer may begin with; beyond, it is answered by zero."""
LARGEST_KEPT = 1 << 16
"""Elements of a value that is kept once it was worked out; a larger one is worked out anew."""
LARGEST_KNOWN = 1 << 20
"""Elements of a tensor of the host whose values are remembered when it is copied to the device."""
_aten = torch.ops.aten


class UnansweredError(Exception):
    """The recipe cannot be run."""


def _drawn_first(chances: torch.Tensor, count: int, *_: Any, **__: Any) -> torch.Tensor:
    """What is drawn where no chance is known: the first, as the largest of zeros is."""
    return torch.arange(count).expand(*chances.shape[:-1], count)


def _reshaped(tensor: torch.Tensor, size: Any, stride: Any) -> torch.Tensor:
    """The strides are those on the device: a value that is kept lies in rows of its own."""
    return tensor.reshape(size)


_INSTEAD = {_aten.multinomial.default: _drawn_first, _aten._reshape_alias.default: _reshaped}
"""What answers for an operator that refuses zeros, or that reads past its tensor's end."""

_FACTORS = {
    getattr(_aten, name).default
    for name in (
        *("linalg_cholesky_ex", "linalg_inv_ex", "linalg_lu_factor_ex", "linalg_ldl_factor_ex"),
        *("_linalg_solve_ex", "linalg_solve_ex"),
    )
}
"""Operators that say at last whether they succeeded, as zeros do not: 0 where they did."""


class Unknown:
    """A tensor of which nothing is remembered: zeros of this shape."""

    __slots__ = ("dtype", "shape")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.shape = tuple(tensor.shape)
        self.dtype = tensor.dtype


class Recipe:
    """The operator and arguments a tensor was made by; output ``index`` where there are several."""

    __slots__ = ("args", "by_choice", "depth", "found", "func", "index", "kwargs", "sure")

    def __init__(
        self,
        func: Any,
        args: Any,
        kwargs: Any,
        index: int | None,
        depth: int,
        *,
        sure: bool = False,
        by_choice: bool | None = None,
    ) -> None:
        self.func = func
        self.args = args
        self.kwargs = kwargs
        self.index = index
        self.depth = depth
        self.found: dict[int, torch.Tensor] = {}
        """Values that were worked out, by the numbers that symbols stood for."""
        self.sure = sure
        """The device holds just this, whatever is in memory that nobody described."""
        if by_choice is None:
            by_choice = func in CHOOSES or any(part.by_choice for part in self.inputs())
        self.by_choice: bool = by_choice
        """What was chosen among scores has a part in it: as much, whatever the scores are."""

    def inputs(self) -> Iterator[Recipe]:
        """What it is made of, as far as that is remembered."""
        pending = [*self.args, *self.kwargs.values()]
        while pending:
            value = pending.pop()
            if isinstance(value, Recipe):
                yield value
            elif isinstance(value, list | tuple):
                pending.extend(value)

    def keep(self, value: torch.Tensor, which: int | None) -> None:
        """Keep a value; without symbols nobody asks again how it came about."""
        self.found[which or 0] = value
        if which is None:
            self.args, self.kwargs, self.depth = [], {}, 0


def host_value(tensor: torch.Tensor) -> Recipe | None:
    """How to make a small tensor of the host again, as it is now."""
    if type(tensor) is not torch.Tensor or tensor.device.type != "cpu":
        return None
    if tensor.numel() > LARGEST_KNOWN:
        return None
    with without_dispatch():
        kept = tensor.detach().clone()
    return Recipe(lambda: kept, [], {}, None, 0, sure=True)


class Worked:
    """Works recipes out; what operators make of the same zeros is kept."""

    def __init__(self) -> None:
        self._zeros: dict[Any, torch.Tensor] = {}
        """By operator and arguments."""
        self.turns = Turns()

    def value(
        self, wanted: Recipe, number: Callable[[Any], int], which: int | None
    ) -> torch.Tensor:
        """Work a recipe out, each part of it once.

        Args:
            wanted: what is asked for.
            number: what a size that is a symbol shall be.
            which: names ``number`` among others; ``None``: no size is a symbol.

        Raises:
            UnansweredError: a part of it cannot be run.
        """
        large: dict[int, torch.Tensor] = {}
        """Values too large to be kept beyond this."""
        pending = [wanted]
        while pending:
            made = pending[-1]
            if id(made) in large or (which or 0) in made.found:
                pending.pop()
                continue
            known = {
                id(part): part.found.get(which or 0, large.get(id(part))) for part in made.inputs()
            }
            missing = [part for part in made.inputs() if known[id(part)] is None]
            if missing:
                pending.extend(missing)
                continue
            value = self._one(made, known, number)
            if value.numel() <= LARGEST_KEPT:
                made.keep(value, which)
            else:
                large[id(made)] = value
        return wanted.found.get(which or 0, large.get(id(wanted)))  # type: ignore[return-value]

    def _one(
        self, made: Recipe, known: dict[int, Any], number: Callable[[Any], int]
    ) -> torch.Tensor:
        """The value of one operator; what it makes of the same zeros is worked out once."""
        key = None
        if not known and not made.sure:
            with contextlib.suppress(TypeError):
                key = made.func, made.index, _frozen([made.args, made.kwargs], number)
                if (same := self._zeros.get(key)) is not None:
                    return same
        out = call(made, known, number, self.turns)
        value = out if made.index is None else out[made.index]
        if not isinstance(value, torch.Tensor):
            raise UnansweredError
        if value.is_floating_point() and not made.sure and value.isnan().any():
            # Zero by zero, of what would be other numbers on a GPU.
            value = value.nan_to_num(nan=0.0, posinf=math.inf, neginf=-math.inf)
        if key is not None and value.numel() <= LARGEST_KEPT:
            self._zeros[key] = value
        return value


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Outside of all modes, and without a trace in the random numbers of the program."""
    with without_modes(), torch.random.fork_rng(devices=[]):
        # Of the CPU alone, which is what recipes run on: torch.manual_seed asks every device.
        torch.default_generator.manual_seed(0)
        yield


def call(made: Recipe, known: dict[int, Any], number: Callable[[Any], int], turns: Turns) -> Any:
    """What a recipe's operator makes.

    Args:
        made: the recipe.
        known: values of its inputs, by their identity.
        number: what a size that is a symbol shall be.
        turns: chooses among scores that are not known.

    Raises:
        UnansweredError: the operator refuses such values.
    """
    try:
        args = _values(made.args, known, number)
        kwargs = {name: _values(item, known, number) for name, item in made.kwargs.items()}
        if "device" in kwargs:
            kwargs["device"] = torch.device("cpu")
        if made.func in CHOOSES and not made.sure:
            return turns.choose(made.func, *args, **kwargs)
        out = _INSTEAD.get(made.func, made.func)(*args, **kwargs)
    except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError) as error:
        raise UnansweredError from error
    if made.func in _FACTORS and not made.sure:
        return (*out[:-1], torch.zeros_like(out[-1]))
    return out


def _frozen(value: Any, number: Callable[[Any], int]) -> Any:
    """Arguments as a key; they hold zeros and plain values only.

    Raises:
        TypeError: a value cannot be part of a key.
    """
    if isinstance(value, Unknown):
        return "zeros", tuple(number(length) for length in value.shape), value.dtype
    if isinstance(value, torch.SymInt):
        return int, number(value)
    if isinstance(value, list | tuple):
        return tuple(_frozen(item, number) for item in value)
    if isinstance(value, dict):
        return tuple((name, _frozen(item, number)) for name, item in value.items())
    hash(value)
    return type(value), value


def _values(value: Any, known: dict[int, Any], number: Callable[[Any], int]) -> Any:
    if isinstance(value, torch.SymInt):
        return number(value)
    if isinstance(value, Recipe):
        # An operator may write into what it is given.
        return known[id(value)].clone()
    if isinstance(value, Unknown):
        shape = [number(length) for length in value.shape]
        if math.prod(shape) * value.dtype.itemsize > LARGEST:
            raise UnansweredError
        return torch.zeros(shape, dtype=value.dtype)
    if isinstance(value, list | tuple):
        return type(value)(_values(item, known, number) for item in value)
    return value
