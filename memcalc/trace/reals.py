"""Real numbers that a script put on the GPU, such as the boxes of what is to be detected.

Beside what ``Values`` remembers: small tensors that were copied from the host, numbers that were
filled in or drawn there, and what is made of these alone. What a weight or a large batch has a part
in is unknown, and read as zero.
"""

from __future__ import annotations

import functools
from collections.abc import Container, Iterator
from typing import Any

import torch

from memcalc.trace import drawn
from memcalc.trace.drawn import DRAWS, FRESH, Drawn
from memcalc.trace.recipes import Recipe, host_value
from memcalc.trace.torch_private.dispatch import without_dispatch
from memcalc.trace.torch_private.tensors import storage_key
from memcalc.trace.values import FILLS, Values
from memcalc.trace.writes import is_decided_by, places_written, unwritten

MOST = 1 << 16
"""Real numbers of a tensor that are remembered when it is copied to the device."""
_aten = torch.ops.aten
_STRIDED = torch.strided
FILLED = {
    *(_aten.zeros.default, _aten.zeros_like.default, _aten.new_zeros.default),
    *(_aten.ones_like.default, _aten.new_ones.default),
    *(_aten.full_like.default, _aten.new_full.default),
}
"""Operators whose results hold one number, whatever the tensor holds that they are made like."""
_RANDOM = torch.Tag.nondeterministic_seeded
CLOSE = _aten.allclose.default
"""What a script asserts of two ways to the same numbers."""


class RealValues(Values):
    """Remembers real numbers too, as long as all that they are made of is known.

    Args:
        behind: where a generator of the device is.
    """

    def __init__(self, behind: drawn.Behind) -> None:
        super().__init__()
        self._sequences = drawn.Sequences(behind)
        self._decided_by_chance = False

    def said(self) -> tuple[str, ...]:
        """What was assumed of values, beside that they are zeros."""
        return (*super().said(), *((drawn.SAID,) if self._decided_by_chance else ()))

    def note(self, func: Any, args: Any, kwargs: Any, out: Any, *, deciding: bool) -> None:
        """Note how results came about; what is drawn is drawn on the host where it is needed."""
        if func in DRAWS and drawn.few(out) and self._says_how(func, args, kwargs):
            if func in FRESH and func._schema.is_mutable:
                # What it held is gone, and no part of what it holds.
                self._made.pop(id(args[0]), None)
            device = (out[0] if isinstance(out, list | tuple) else out).device
            turn = self._sequences.turn(func, kwargs.get("generator"), device)
            if turn is not None:
                func, deciding = Drawn(func, turn, self._by_chance), True
        super().note(func, args, kwargs, out, deciding=deciding)

    def _says_how(self, func: Any, args: Any, kwargs: Any) -> bool:
        """What the numbers are drawn by is known."""
        if func in FRESH:
            return not drawn.fills_weight(func, args)
        return super().sure(None, self._described(args, kwargs)[0])

    def _by_chance(self) -> None:
        self._decided_by_chance = True

    def may_note(self, func: Any, args: Any, out: Any) -> bool:
        """Whether there may be anything to note of any call with tensors such as these."""
        if super().may_note(func, args, out) or func in FILLED:
            return True
        if func in FRESH and drawn.few(out):
            return True
        return not _goes_through_lists(func) and any(
            not one.dtype.is_floating_point for one in tensors_of(args)
        )

    def follows(self, args: Any) -> bool:
        """Whether there may be in this call: all that goes in has to be known, so the first has."""
        first = args[0] if args else None
        if isinstance(first, list | tuple):
            first = first[0] if first else None
        return id(first) in self._made or type(first) is torch.Tensor

    def calls_of(self, func: Any) -> Calls:
        """What tells calls of this operator apart."""
        return Calls(func, self._made, self._sharing)

    def arrived(self, tensor: torch.Tensor, host: torch.Tensor) -> Recipe | None:
        """What is remembered of a copy of the host's; real numbers too, where they are few."""
        # Copies of weights are fake on the host as well.
        real = type(host) is torch.Tensor and host.dtype.is_floating_point
        if real and 1 < host.numel() <= MOST:
            with without_dispatch():
                return host_value(host.to(tensor.dtype))
        return super().arrived(tensor, host)

    def counts(self, func: Any, args: Any) -> bool:
        """Numbers are filled in or put in known places, or all that goes in is known."""
        if func in FILLED or func in FILLS:
            return True
        if _goes_through_lists(func) or _RANDOM in getattr(func, "tags", ()):
            return super().counts(func, args)
        some, sure = False, True
        for tensor in tensors_of(args):
            made = self.recipe_of(tensor)
            if made is None:
                sure = sure and tensor.device.type == "cpu"
            elif not tensor.dtype.is_floating_point:
                return True
            else:
                sure = sure and made.sure
            some = True
        return some and sure

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What an operator makes of values such as these; what is unknown is as close as asserted.

        Raises:
            UnansweredError: it cannot be run.
        """
        if func is CLOSE and not self.sure(func, self._described(args, kwargs)[0]):
            return True
        return super().run(func, args, kwargs)

    def sure(self, func: Any, described: tuple[Any, Any]) -> bool:
        """What an operator makes follows from its arguments, and all of these are sure."""
        if func in FILLED or (isinstance(func, Drawn) and func.fresh):
            return True
        return super().sure(func, described)


class Calls:
    """Tells calls of one operator apart, over PyTorch's CUDA code: of most nothing is to be noted.

    Args:
        func: the operator.
        made: tensors of which something is known, by their identity.
        sharing: storages that such tensors lie in.
    """

    __slots__ = ("_draws", "_in_lists", "_made", "_places", "_sharing", "_written")

    def __init__(self, func: Any, made: Container[int], sharing: Container[int]) -> None:
        self._made = made
        self._sharing = sharing
        self._draws = func in FRESH
        self._in_lists = not _goes_through_lists(func)
        self._places = places_written(func)
        self._written = not unwritten(func)

    def silent(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Nothing follows from a call but by what comes out of it.

        All that goes in are real numbers on the device that nobody knows, and what is written to
        shares no memory with what is known.
        """
        if self._draws:
            return False
        made = self._made
        for arg in args:
            if isinstance(arg, torch.Tensor):
                if id(arg) in made or not _is_real(arg):
                    return False
            elif self._in_lists and isinstance(arg, list | tuple):
                for item in arg:
                    if isinstance(item, torch.Tensor) and (id(item) in made or not _is_real(item)):
                        return False
        if kwargs:
            for value in kwargs.values():
                if isinstance(value, torch.Tensor):
                    return False
        for place in self._places:
            for tensor in tensors_of(args[place : place + 1]):
                if storage_key(tensor) in self._sharing:
                    return False
        return True

    def decides(self, out: Any) -> bool:
        """A program could decide by this result."""
        return self._written and is_decided_by(out)


def _is_real(tensor: torch.Tensor) -> bool:
    """It lies on the device, and holds real numbers in rows."""
    return tensor.is_cuda and tensor.is_floating_point() and tensor.layout is _STRIDED


@functools.cache
def _goes_through_lists(func: Any) -> bool:
    """An optimizer's steps and norms: what they make of weights nobody decides by."""
    return str(func.name()).startswith(("aten::_foreach_", "aten::_fused_"))


def tensors_of(args: Any) -> Iterator[torch.Tensor]:
    """Tensors among arguments; those of an index lie in a list."""
    for arg in args:
        for item in arg if isinstance(arg, list | tuple) else (arg,):
            if isinstance(item, torch.Tensor):
                yield item
