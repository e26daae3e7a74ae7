"""ZeroRedundancyOptimizer on one rank: states that other ranks would send to be consolidated.

Each rank keeps the state of its share of the parameters. The state of this rank's share is resized
to the parameters of the others.
"""

import copy
import io
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

from memcalc.engine.patches import Patches


def install(patches: Patches) -> None:
    """Patch ZeroRedundancyOptimizer, once imported, to make up states of other ranks."""
    name = "torch.distributed.optim.zero_redundancy_optimizer"
    patches.when_imported(name, lambda module: _patch_consolidation(module, patches))


def _patch_consolidation(module: ModuleType, patches: Patches) -> None:
    consolidating: list[Any] = []

    def consolidate(original: Any, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        consolidating.append(optimizer)
        try:
            original(optimizer, *args, **kwargs)
        finally:
            consolidating.pop()

    def receive(
        original: Any, obj: Any, src_rank: int, group: Any = None, device: Any = "cpu"
    ) -> Any:
        if not consolidating or dist.get_rank() == src_rank:
            return original(obj, src_rank, group, device)
        buffer = io.BytesIO()
        torch.save(_make_state(consolidating[-1], dist.get_group_rank(group, src_rank)), buffer)
        held = torch.empty(buffer.tell(), dtype=torch.uint8, device=device)
        buffer.seek(0)
        state = torch.load(buffer, map_location=device, weights_only=False)
        del held
        return state

    patches.wrap(module.ZeroRedundancyOptimizer, "consolidate_state_dict", consolidate)
    patches.wrap(module, "_broadcast_object", receive)


def _make_state(optimizer: Any, rank: int) -> dict[str, Any]:
    """Return the state that the optimizer of another rank would have, made like this one's."""
    own = optimizer.optim.state_dict()
    like = next(iter(optimizer.optim.state.items()), None)
    groups: list[dict[str, Any]] = []
    state: dict[int, dict[str, Any]] = {}
    for group, share in zip(
        own["param_groups"], optimizer._partition_parameters()[rank], strict=True
    ):
        first = len(state)
        for place, parameter in enumerate(share["params"], first):
            state[place] = _resize(like, parameter) if like is not None else {}
        groups.append({**group, "params": list(range(first, len(state)))})
    return {"state": state if like is not None else {}, "param_groups": groups}


def _resize(like: tuple[torch.Tensor, dict[str, Any]], parameter: torch.Tensor) -> dict[str, Any]:
    """Return a parameter's state, made like another parameter's: tensors get its shape."""
    other, known = like
    return {
        name: torch.zeros_like(parameter, dtype=value.dtype, device="cpu")
        if isinstance(value, torch.Tensor) and value.shape == other.shape
        else copy.deepcopy(value)
        for name, value in known.items()
    }
