"""What a value read from the device would be, were all memory there zero.

Programs sometimes decide by a value they computed on the device: how many tokens each expert
gets, whether any entry is negative. The simulated device holds no data. So of every tensor that
such decisions are made from (whole numbers, truths, single numbers) it is remembered how it was
made; when one is read, that recipe is run on the CPU with zeros where it begins. Answers then
agree with each other: counts sum to what was counted.
"""

from __future__ import annotations

import contextlib
import math
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

from memcalc.trace.torch_private import storage_key, without_dispatch, without_modes

LONGEST = 4096
"""Steps of a recipe that are run; a longer one is answered by zero."""
LARGEST = 1 << 24
"""Elements of a tensor that are computed for one answer; beyond, it is answered by zero."""
LARGEST_KNOWN = 1 << 20
"""Elements of a tensor of the host whose values are remembered when it is copied to the device."""


_aten = torch.ops.aten
_FILLS = {_aten.full.default, _aten.ones.default, _aten.arange.default, _aten.eye.default}
"""Operators that make tensors of known numbers, beside zeros."""


class _Unknown:
    """A tensor of which nothing is remembered: zeros of this shape."""

    __slots__ = ("dtype", "shape")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.shape = tuple(tensor.shape)
        self.dtype = tensor.dtype


class _Made:
    """The operator and arguments a tensor was made by; output ``index`` where there are several."""

    __slots__ = ("args", "depth", "func", "index", "kwargs")

    def __init__(self, func: Any, args: Any, kwargs: Any, index: int | None, depth: int) -> None:
        self.func = func
        self.args = args
        self.kwargs = kwargs
        self.index = index
        self.depth = depth


def _host_value(tensor: torch.Tensor) -> _Made | None:
    """How to make a small tensor of the host again, as it is now."""
    if type(tensor) is not torch.Tensor or tensor.device.type != "cpu":
        return None
    if tensor.numel() > LARGEST_KNOWN:
        return None
    with without_dispatch():
        kept = tensor.detach().clone()
    return _Made(lambda: kept, [], {}, None, 0)


class UnansweredError(Exception):
    """The recipe cannot be run."""


class Values:
    """Remembers how tensors on the simulated device were made."""

    def __init__(self) -> None:
        self._made: dict[int, tuple[weakref.ref[torch.Tensor], _Made]] = {}
        self._sharing: dict[int, set[int]] = {}
        """Of each storage: the tensors in it whose making is remembered."""

    def remember(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Note how an operator's results came about, where a program could decide by them."""
        outputs = out if isinstance(out, list | tuple) else (out,)
        deciding = any(_decides(item) for item in outputs) and not _unwritten(func)
        given = self._described(args, kwargs) if deciding or self._counts(func, args) else None
        for tensor in _written(func, args):
            # What else shows this memory no longer holds what its recipe says.
            for key in self._sharing.pop(storage_key(tensor), ()):
                self._made.pop(key, None)
        if given is None:
            return
        described, depth = given
        for index, item in enumerate(outputs):
            if isinstance(item, torch.Tensor) and depth < LONGEST:
                at = index if isinstance(out, list | tuple) else None
                self._keep(item, _Made(func, *described, at, depth + 1))

    def know(self, tensor: torch.Tensor, host: torch.Tensor) -> None:
        """A tensor now holds what this one of the host holds; whole numbers are remembered."""
        for key in self._sharing.pop(tensor.untyped_storage()._cdata, ()):
            self._made.pop(key, None)
        if not host.dtype.is_floating_point:
            known = _host_value(host.to(tensor.dtype)) if host.dtype != tensor.dtype else None
            made = known or _host_value(host)
            if made is not None:
                self._keep(tensor, made)

    def _counts(self, func: Any, args: Any) -> bool:
        """Numbers are filled in, or put in places that are known."""
        return func in _FILLS or any(
            isinstance(arg, torch.Tensor)
            and not arg.dtype.is_floating_point
            and self._of(arg) is not None
            for arg in args
        )

    def _described(self, args: Any, kwargs: Any) -> tuple[tuple[Any, Any], int]:
        """Arguments with recipes for tensors, and the longest of these recipes."""
        depth = 0

        def described(value: Any) -> Any:
            nonlocal depth
            if isinstance(value, torch.Tensor):
                known = self._of(value)
                if known is None:
                    return _host_value(value) or _Unknown(value)
                depth = max(depth, known.depth)
                return known
            if isinstance(value, list | tuple):
                return type(value)(described(item) for item in value)
            return value

        given = described(list(args)), {name: described(item) for name, item in kwargs.items()}
        return given, depth

    def _keep(self, tensor: torch.Tensor, made: _Made) -> None:
        key, storage = id(tensor), storage_key(tensor)

        def forget(_: object) -> None:
            self._made.pop(key, None)
            self._sharing.get(storage, set()).discard(key)

        self._made[key] = (weakref.ref(tensor, forget), made)
        self._sharing.setdefault(storage, set()).add(key)

    def _of(self, tensor: torch.Tensor) -> _Made | None:
        found = self._made.get(id(tensor))
        return found[1] if found is not None and found[0]() is tensor else None

    def read(self, tensor: torch.Tensor, number: Callable[[Any], int] = int) -> bool | int | float:
        """The value of a tensor with one element, were the device's memory zero.

        Args:
            tensor: on the simulated device.
            number: what a size that is a symbol shall be.

        Raises:
            UnansweredError: how it was made is not known, or too much to run.
        """
        made = self._of(tensor)
        if made is None:
            raise UnansweredError
        with _alone():
            value: bool | int | float = _run(made, {}, number).item()
            return value

    def whole(self, tensor: torch.Tensor) -> torch.Tensor:
        """All values of a tensor, as a tensor of the host.

        Raises:
            UnansweredError: how it was made is not known, or too much to run.
        """
        made = self._of(tensor)
        if made is None:
            raise UnansweredError
        with _alone():
            return _run(made, {}, int).clone()

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What an operator makes of values such as these, on the host.

        Raises:
            UnansweredError: it cannot be run.
        """
        (given, named), depth = self._described(args, kwargs)
        with _alone():
            return _call(_Made(func, given, named, None, depth), {}, int)


def _decides(item: Any) -> bool:
    if not isinstance(item, torch.Tensor):
        return False
    return item.dim() == 0 or not item.dtype.is_floating_point


_writes: dict[Any, tuple[int, ...]] = {}


def _written(func: Any, args: Any) -> Iterator[torch.Tensor]:
    """The tensors an operator writes into."""
    places = _writes.get(func)
    if places is None:
        schema = getattr(func, "_schema", None)
        arguments = schema.arguments if schema is not None else ()
        places = _writes[func] = tuple(
            index
            for index, argument in enumerate(arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        )
    for place in places:
        value = args[place] if place < len(args) else None
        for item in value if isinstance(value, list | tuple) else (value,):
            if isinstance(item, torch.Tensor):
                yield item


def _unwritten(func: Any) -> bool:
    """It makes memory that nobody has written: zeros, as far as anyone can say."""
    return "empty" in getattr(func, "__name__", "")


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Outside of all modes, and without a trace in the random numbers of the program."""
    with without_modes(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def _call(made: _Made, known: dict[int, Any], number: Callable[[Any], int]) -> Any:
    try:
        args = _values(made.args, known, number)
        kwargs = {name: _values(item, known, number) for name, item in made.kwargs.items()}
        if "device" in kwargs:
            kwargs["device"] = torch.device("cpu")
        return made.func(*args, **kwargs)
    except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError) as error:
        raise UnansweredError from error


def _run(made: _Made, known: dict[int, Any], number: Callable[[Any], int]) -> torch.Tensor:
    if id(made) in known:
        return known[id(made)]  # type: ignore[no-any-return]
    out = _call(made, known, number)
    result = out if made.index is None else out[made.index]
    known[id(made)] = result
    if not isinstance(result, torch.Tensor):
        raise UnansweredError
    return result


def _values(value: Any, known: dict[int, Any], number: Callable[[Any], int]) -> Any:
    if isinstance(value, torch.SymInt):
        return number(value)
    if isinstance(value, _Made):
        # An operator may write into what it is given.
        return _run(value, known, number).clone()
    if isinstance(value, _Unknown):
        shape = [number(length) for length in value.shape]
        if math.prod(shape) > LARGEST:
            raise UnansweredError
        return torch.zeros(shape, dtype=value.dtype)
    if isinstance(value, list | tuple):
        return type(value)(_values(item, known, number) for item in value)
    return value
