"""Random numbers that a script draws on the host for weights that are not filled.

What it draws afterwards, such as the order of its data, depends on how many were drawn before. They
are drawn when somebody asks the generator again, and not at all where it is seeded anew until then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from memcalc.script.patches import Patches
from memcalc.trace.torch_private.dispatch import FakeTensor, OpOverload, without_dispatch

_AT_ONCE = 1 << 20
"""Elements that are drawn at a time: PyTorch draws for so many by the same rule as for all."""
_FEWEST = 16
"""PyTorch draws for fewer than these in another way (aten/src/ATen/native/cpu, ``normal_fill``)."""
_WHOLE = 1 << 27
"""Elements of what is drawn as a whole at most."""
MOST = 1 << 31
"""Elements that are drawn; more take longer than their order is worth."""


class Draws:
    """What was drawn for nothing, and when it has to be drawn after all.

    Args:
        say: told where numbers are not drawn.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._pending: list[tuple[Any, int, torch.dtype, tuple[Any, ...], dict[str, Any]]] = []
        self._elements = 0

    def install(self, patches: Patches) -> None:
        """Follow those who ask PyTorch's generator, or seed it."""

        def asked(original: Any, *args: Any, **kwargs: Any) -> Any:
            self.settle()
            return original(*args, **kwargs)

        def seeded(original: Any, *args: Any, **kwargs: Any) -> Any:
            self._forget()
            return original(*args, **kwargs)

        def truncated(original: Any, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if kwargs.get("generator") is not None or not _waits(tensor):
                return original(tensor, *args, **kwargs)
            self._wait(original, tensor, args, kwargs)
            return tensor

        # It draws anew until no number lies outside (2.13), so numbers decide how often.
        patches.wrap(torch.nn.init, "_no_grad_trunc_normal_", truncated)
        for name, around in (
            *(("get_rng_state", asked), ("manual_seed", seeded)),
            *(("seed", seeded), ("set_rng_state", seeded)),
        ):
            patches.wrap(torch.random, name, around)
            patches.set(torch, name, getattr(torch.random, name))

    def skipped(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """An operator has filled no memory."""
        if not is_random(func) or kwargs.get("generator") is not None:
            return
        first, *others = args
        if any(isinstance(other, torch.Tensor) for other in others):
            return
        written = func._schema.arguments[0].alias_info is not None
        if not isinstance(first, torch.Tensor) or not written:
            return
        self._wait(func, first, tuple(others), kwargs)

    def settle(self) -> None:
        """Draw what was not drawn yet."""
        pending, elements = self._pending, self._elements
        self._forget()
        if elements > MOST:
            self._say(
                "random numbers drawn after those of so many weights are others than the seed's"
            )
            return
        with without_dispatch():
            for func, numel, dtype, args, kwargs in pending:
                for part in _parts(numel) if isinstance(func, OpOverload) else (numel,):
                    func(torch.empty(part, dtype=dtype, device="cpu"), *args, **kwargs)

    def _wait(
        self, func: Any, first: torch.Tensor, others: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self._pending.append((func, first.numel(), first.dtype, others, kwargs))
        self._elements += first.numel()

    def _forget(self) -> None:
        self._pending, self._elements = [], 0


def _waits(tensor: torch.Tensor) -> bool:
    """It lies on the host, is not filled, and is not too large to be drawn as a whole."""
    fake = isinstance(tensor, FakeTensor) and tensor.device.type == "cpu"
    return fake and tensor.numel() <= _WHOLE


def is_random(func: Any) -> bool:
    """An operator draws from a generator."""
    return torch.Tag.nondeterministic_seeded in func.tags


def _parts(numel: int) -> list[int]:
    """So many elements in parts, the last of which is as long as any other or longer."""
    whole, rest = divmod(numel, _AT_ONCE)
    parts = [_AT_ONCE] * whole
    if rest >= _FEWEST or not parts:
        return [*parts, rest]
    return [*parts[:-1], parts[-1] + rest]
