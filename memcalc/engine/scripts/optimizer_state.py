"""What an optimizer holds: parameters and state, also where it is none of PyTorch's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from memcalc.records.model import DTYPE_BYTES, Place, StateTensor


def held_by(optimizer: Any) -> Iterator[torch.Tensor]:
    """The parameters of an optimizer, also of one that is no ``torch.optim.Optimizer``."""
    groups = getattr(optimizer, "param_groups", None)
    if isinstance(groups, list) and groups and isinstance(groups[0], dict):
        for group in groups:
            yield from (p for p in group.get("params", ()) if isinstance(p, torch.Tensor))
        return
    for value in getattr(optimizer, "__dict__", {}).values():
        yield from (one for _, one in flat("", value, depth=3) if one.requires_grad)


def state_of(optimizer: Any) -> dict[Any, Any]:
    """What an optimizer keeps, by parameter where it tells them apart."""
    # ZeroRedundancyOptimizer holds another that has this rank's share.
    state = getattr(getattr(optimizer, "optim", optimizer), "state", None)
    if state is not None and hasattr(state, "items"):
        return dict(state.items())
    kept = {
        name: value
        for name, value in getattr(optimizer, "__dict__", {}).items()
        if not any(one.requires_grad for _, one in flat("", value, depth=3))
    }
    return {"": kept}


def states(optimizer: Any) -> Iterator[StateTensor]:
    """Every tensor that an optimizer keeps; parameters by their number."""
    for number, state in enumerate(state_of(optimizer).values()):
        for name, value in flat("", state):
            if dtype_name(value) in DTYPE_BYTES:
                place = Place.DEVICE if value.device.type == "cuda" else Place.HOST
                yield StateTensor(
                    parameter=str(number),
                    name=name,
                    dtype=dtype_name(value),
                    numel=value.numel(),
                    place=place,
                )


def flat(name: str, state: Any, depth: int = 6) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors in a state; optimizers of one's own keep them in lists and by numbers, too."""
    if isinstance(state, torch.Tensor):
        yield name, state
    elif isinstance(state, dict | list | tuple) and depth:
        for key, value in state.items() if isinstance(state, dict) else enumerate(state):
            yield from flat(f"{name}.{key}" if name else str(key), value, depth - 1)


def dtype_name(tensor: torch.Tensor) -> str:
    """Such as ``float32``."""
    return str(tensor.dtype).removeprefix("torch.")
