"""The real optimizer of a program, made as its loop makes it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from memcalc.registry.build import build
from memcalc.workload import layouts, loops
from memcalc.workload.program import Program


def make(
    program: Program, model: torch.nn.Module, *, only: torch.nn.Parameter | None = None
) -> torch.optim.Optimizer:
    """Make the optimizer over the parameters of a model that train.

    Args:
        program: names the optimizer and the loop.
        model: its parameters are on their device already.
        only: make it over this parameter alone.

    Raises:
        UsageError: its package is not installed, or the class refuses its arguments.
    """
    loop, layout = loops.of(program.plan), layouts.of(program.plan)
    # None is the Trainer's default; some optimizers make lists of temporaries for any.
    decay = float(program.choice.given.get("weight_decay") or 0.0)
    groups: list[Any] | None = None
    if only is None:
        groups = layout.groups(model) if layout.groups else loop.groups(model, decay)
    return build(
        program.choice,
        model,
        groups=groups,
        wide_embeddings=loop.wide_embeddings,
        only=only,
        through=layout.optimizer,
    )


Made = Callable[[torch.nn.Parameter], torch.optim.Optimizer]


class InBackward(torch.optim.Optimizer):
    """Stands where a loop expects one optimizer; the real ones run by themselves."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter], make: Made) -> None:
        every = list(parameters)
        super().__init__(every, {})
        self.each = {parameter: make(parameter) for parameter in every}
        for parameter in every:
            parameter.register_post_accumulate_grad_hook(self._update)
        self._merge()

    def _update(self, parameter: torch.Tensor) -> None:
        optimizer = self.each[parameter]  # type: ignore[index]
        optimizer.step()
        optimizer.zero_grad()
        self._merge_one(optimizer)

    def _merge(self) -> None:
        for optimizer in self.each.values():
            self._merge_one(optimizer)

    def _merge_one(self, optimizer: torch.optim.Optimizer) -> None:
        for owner, state in optimizer.state.items():
            self.state[owner] = state

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """All updates are made: they happen in backward."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        """All gradients are gone: they were freed in backward."""
