"""The real optimizer of a program, made as its loop makes it, and the state of a resumed run."""

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils._pytree import tree_map

from memcalc.registry.build import build
from memcalc.workload import layouts, loops
from memcalc.workload.job import Program


def make(
    program: Program, model: torch.nn.Module, *, only: torch.nn.Parameter | None = None
) -> torch.optim.Optimizer:
    """Make a program's optimizer over the model's trained parameters, or over ``only`` one.

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
    """An optimizer for a loop; each parameter has a real one, which steps in backward."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter], make: Made) -> None:
        self.each = {parameter: make(parameter) for parameter in parameters}
        # A scheduler of the loop looks for the learning rate in the groups of this one.
        super().__init__([*self.each], next(iter(self.each.values())).defaults)
        for parameter in self.each:
            parameter.register_post_accumulate_grad_hook(self._update)
        for optimizer in self.each.values():
            self._merge_state(optimizer)

    def _update(self, parameter: torch.Tensor) -> None:
        optimizer = self.each[parameter]  # type: ignore[index]
        optimizer.step()
        optimizer.zero_grad()
        self._merge_state(optimizer)

    def _merge_state(self, optimizer: torch.optim.Optimizer) -> None:
        self.state.update(optimizer.state)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Do nothing: updates happen in backward."""


def saved_state(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return the state that a checkpoint of this optimizer would hold, on the host.

    The optimizer takes one step with gradients of zero and is emptied again.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    saved = optimizer.state_dict()
    state = {
        owner: _map_tensors(values, lambda t: t.detach().cpu())
        for owner, values in saved["state"].items()
    }
    optimizer.state.clear()
    # bitsandbytes keeps the maps that it made beside its state; a fresh process has none.
    getattr(optimizer, "name2qmap", {}).clear()
    return {**saved, "state": state}


def restore(optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
    """Load a checkpoint's state into an optimizer, as transformers' Trainer does.

    Source: transformers 5.23 ``Trainer._load_optimizer_and_scheduler`` (``map_location="cpu"`` on
    one GPU), then the optimizer's own ``load_state_dict``.
    """
    if all(p.device.type == "cpu" for g in optimizer.param_groups for p in g["params"]):
        # Reading the file is what allocates: load_state_dict takes host tensors over as they are.
        state = {owner: _map_tensors(value, torch.clone) for owner, value in saved["state"].items()}
        saved = {**saved, "state": state}
    optimizer.load_state_dict(saved)


def _map_tensors(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return a nested structure with ``change`` applied to each distinct tensor."""
    known: dict[int, torch.Tensor] = {}

    def once(item: Any) -> Any:
        if not isinstance(item, torch.Tensor):
            return copy.copy(item)
        if id(item) not in known:
            known[id(item)] = change(item)
        return known[id(item)]

    return tree_map(once, value)
