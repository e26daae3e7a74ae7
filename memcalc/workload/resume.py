"""A resumed run: the optimizer's state is on the device before the first forward."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map


def saved_state(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The state that a checkpoint of this optimizer would hold, on the host.

    The optimizer takes one step with gradients of zero and is emptied again.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    saved = optimizer.state_dict()
    state = {owner: _copied(values, _on_host) for owner, values in saved["state"].items()}
    optimizer.state.clear()
    # bitsandbytes keeps the maps that it made beside its state; a fresh process has none.
    getattr(optimizer, "name2qmap", {}).clear()
    return {**saved, "state": state}


def restore(optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
    """Load a checkpoint that was read into host memory, as transformers' Trainer does it.

    Source: transformers 5.23 ``Trainer._load_optimizer_and_scheduler`` (``map_location="cpu"`` on
    one GPU), then the optimizer's own ``load_state_dict``.
    """
    on_host = all(p.device.type == "cpu" for g in optimizer.param_groups for p in g["params"])
    if on_host:
        # Reading the file is what allocates: load_state_dict takes host tensors over as they are.
        state = {owner: _copied(value, torch.clone) for owner, value in saved["state"].items()}
        saved = {**saved, "state": state}
    optimizer.load_state_dict(saved)


def _on_host(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu()


def _copied(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The same structure with every tensor changed, one that occurs twice once."""
    known: dict[int, torch.Tensor] = {}

    def once(item: Any) -> Any:
        if not isinstance(item, torch.Tensor):
            return copy.copy(item)
        if id(item) not in known:
            known[id(item)] = change(item)
        return known[id(item)]

    return tree_map(once, value)
