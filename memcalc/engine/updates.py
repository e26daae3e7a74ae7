"""Numbers that optimizers write: their counts of steps are known, weights and averages are not."""

import functools
import weakref
from typing import Any

import torch
from torch.optim import optimizer as optimizers

from memcalc.engine import following
from memcalc.engine.device_numbers import Numbers
from memcalc.engine.host_view import cpu_view, is_plain
from memcalc.engine.notes import flat, held_by
from memcalc.engine.patches import Patches


class Updates:
    """Follows optimizers."""

    def __init__(self, numbers: Numbers) -> None:
        self._numbers = numbers
        self._stepped: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()

    def install(self, patches: Patches) -> None:
        """Register a hook after optimizer steps."""
        hook = optimizers.register_optimizer_step_post_hook(self._forget_first)
        patches.also(hook.remove)

    def implement(self, library: Any, key: str) -> None:
        """Register kernels that also add to optimizers' step counts on the host."""
        for name in ("Scalar", "Tensor"):
            add = getattr(torch.ops.aten._foreach_add_, name)
            count = functools.partial(self._count_steps, add)
            library.impl(f"_foreach_add_.{name}", count, key)

    def _forget_first(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        """Mark the weights and state of an optimizer as unknown after its first step.

        Later steps find nothing that is known.
        """
        if optimizer in self._stepped:
            return
        self._stepped.add(optimizer)
        weights = [one for one in held_by(optimizer) if one.grad is not None]
        kept = [one for of_one in optimizer.state.values() for _, one in flat("", of_one)]
        state = (one for one in kept if one.numel() > 1)
        self._numbers.forget(one for one in (*weights, *state) if is_plain((one,)))

    def _count_steps(
        self, add: Any, counters: list[torch.Tensor], number: Any, **kwargs: Any
    ) -> None:
        """Add a number to counts of steps, which fused optimizers keep on the GPU."""
        with torch._C._ExcludeDispatchKeyGuard(following.keys()):
            add(counters, number, **kwargs)
            first = counters[0]
            if first.is_cuda and first.numel() == 1 and self._numbers.knows(first):
                known = [
                    cpu_view(one)
                    for one in counters
                    if one.numel() == 1 and self._numbers.knows(one)
                ]
                add(known, number, **kwargs)
