"""Real numbers that a script put on the GPU, such as the boxes of what is to be detected.

Beside what ``Values`` remembers: small tensors that were copied from the host, numbers that were
filled in, and what is made of these alone. What a weight, a random number or a large batch has a
part in is unknown, and read as zero.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch

from memcalc.trace.recipes import Recipe, host_value
from memcalc.trace.torch_private.dispatch import without_dispatch
from memcalc.trace.values import FILLS, Values

MOST = 1 << 16
"""Real numbers of a tensor that are remembered when it is copied to the device."""
_aten = torch.ops.aten
_FILLED = {
    *(_aten.zeros.default, _aten.zeros_like.default, _aten.new_zeros.default),
    *(_aten.ones_like.default, _aten.new_ones.default),
    *(_aten.full_like.default, _aten.new_full.default),
}
"""Operators whose results hold one number, whatever the tensor holds that they are made like."""
_RANDOM = torch.Tag.nondeterministic_seeded
CLOSE = _aten.allclose.default
"""What a script asserts of two ways to the same numbers."""


class RealValues(Values):
    """Remembers real numbers too, as long as all that they are made of is known."""

    def may_note(self, func: Any, args: Any, out: Any) -> bool:
        """Whether there may be anything to note of any call with tensors such as these."""
        if super().may_note(func, args, out) or func in _FILLED:
            return True
        return not _goes_through_lists(func) and any(
            not one.dtype.is_floating_point for one in _given(args)
        )

    def follows(self, args: Any) -> bool:
        """Whether there may be in this call: all that goes in has to be known, so the first has."""
        first = args[0] if args else None
        if isinstance(first, list | tuple):
            first = first[0] if first else None
        return id(first) in self._made or type(first) is torch.Tensor

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
        if func in _FILLED or func in FILLS:
            return True
        if _goes_through_lists(func) or _RANDOM in getattr(func, "tags", ()):
            return super().counts(func, args)
        some, sure = False, True
        for tensor in _given(args):
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
        return func in _FILLED or super().sure(func, described)


@functools.cache
def _goes_through_lists(func: Any) -> bool:
    """An optimizer's steps and norms: what they make of weights nobody decides by."""
    return str(func.name()).startswith(("aten::_foreach_", "aten::_fused_"))


def _given(args: Any) -> Iterator[torch.Tensor]:
    """Tensors among arguments; those of an index lie in a list."""
    for arg in args:
        for item in arg if isinstance(arg, list | tuple) else (arg,):
            if isinstance(item, torch.Tensor):
                yield item
