"""Real numbers that a script put on the GPU, such as the boxes of what is to be detected.

Beside what ``Values`` remembers: small tensors that were copied from the host, numbers that were
filled in, and what is made of these alone. What a weight, a random number or a large batch has a
part in is unknown, and read as zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from memcalc.trace.recipes import LARGEST, host_value
from memcalc.trace.torch_private.dispatch import without_dispatch
from memcalc.trace.values import Values

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


class RealValues(Values):
    """Remembers real numbers too, as long as all that they are made of is known."""

    def may_note(self, func: Any, args: Any, out: Any) -> bool:
        """Whether there is anything to note of a call with tensors such as these."""
        if super().may_note(func, args, out):
            return True
        outputs = out if isinstance(out, list | tuple) else (out,)
        return any(isinstance(one, torch.Tensor) and one.numel() <= LARGEST for one in outputs)

    def know(self, tensor: torch.Tensor, host: torch.Tensor) -> None:
        """A tensor now holds what this one of the host holds, where it is not large."""
        super().know(tensor, host)
        # Copies of weights are fake on the host as well.
        real = type(host) is torch.Tensor and host.dtype.is_floating_point
        if real and 1 < host.numel() <= MOST:
            with without_dispatch():
                made = host_value(host.to(tensor.dtype))
            if made is not None:
                self.keep(tensor, made)

    def counts(self, func: Any, args: Any) -> bool:
        """Numbers are filled in or put in known places, or all that goes in is known."""
        if func in _FILLED or super().counts(func, args):
            return True
        if _RANDOM in getattr(func, "tags", ()):
            return False
        given = list(_given(args))
        places = (one for one in given if not one.dtype.is_floating_point)
        if any(self.recipe_of(one) is not None for one in places):
            return True
        return bool(given) and all(map(self._is_sure, given))

    def sure(self, func: Any, described: tuple[Any, Any]) -> bool:
        """What an operator makes follows from its arguments, and all of these are sure."""
        return func in _FILLED or super().sure(func, described)

    def _is_sure(self, tensor: torch.Tensor) -> bool:
        made = self.recipe_of(tensor)
        return made.sure if made is not None else tensor.device.type == "cpu"


def _given(args: Any) -> Iterator[torch.Tensor]:
    """Tensors among arguments; those of an index lie in a list."""
    for arg in args:
        for item in arg if isinstance(arg, list | tuple) else (arg,):
            if isinstance(item, torch.Tensor):
                yield item
