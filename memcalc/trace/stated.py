"""An optimizer known by its state alone, for those whose code cannot run on the simulated GPU."""

from __future__ import annotations

from typing import Any

import torch

from memcalc.records import Inventory, Place, StateTensor
from memcalc.registry import Choice


class StatedOptimizer(torch.optim.Optimizer):
    """Makes the state that the registry's closed form names, in its order, and updates nothing."""

    def __init__(
        self, choice: Choice, inventory: Inventory, model: torch.nn.Module, loop: str
    ) -> None:
        named = {name: p for name, p in model.named_parameters() if p.requires_grad}
        super().__init__(list(named.values()), {})
        self._stated = choice.state(inventory.parameters, loop).tensors
        self._parameters_by_name = named
        self._any = next(iter(named.values()))

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Make state for parameters that have a gradient and no state yet."""
        for stated in self._stated:
            if stated.place is not Place.DEVICE:
                continue
            owner = self._owner(stated)
            # Made through the parameter, so that the state is known to belong to its layer.
            near = self._parameters_by_name.get(stated.parameter, self._any)
            if owner is not None and stated.name not in self.state[owner]:
                dtype = getattr(torch, stated.dtype)
                self.state[owner][stated.name] = near.new_empty(stated.numel, dtype=dtype)

    def _owner(self, stated: StateTensor) -> Any:
        """The parameter the state belongs to; shared state is kept under a name of its own."""
        if not stated.parameter:
            return "shared"
        parameter = self._parameters_by_name[stated.parameter]
        return parameter if parameter.grad is not None else None
