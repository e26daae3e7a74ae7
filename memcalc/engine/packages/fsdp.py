"""FSDP's states of optimizers on one rank: what others would say of the parameters they hold.

With ``use_orig_params`` a rank has state of the parameters in its own shard alone, and asks the
others for the names and shapes of the rest before it gathers them.
"""

from types import ModuleType
from typing import Any

import torch

from memcalc.engine.patches import Patches


def install(patches: Patches) -> None:
    """Patch FSDP, once imported, to make up optimizer state of other ranks."""
    patches.when_imported("torch.distributed.fsdp._optim_utils", lambda m: _patch(m, patches))


def _patch(module: ModuleType, patches: Patches) -> None:
    """Patch the functions with which FSDP asks other ranks for names and shapes of state."""

    def add_names_of_others(original: Any, state: Any, *args: Any, **kwargs: Any) -> Any:
        keys, own = original(state, *args, **kwargs)
        infos = kwargs.get("fqn_to_fsdp_param_info") or args[3]
        others = (
            module._OptimStateKey((name,), True)
            for name, info in infos.items()
            if info.param_requires_grad and info.param_requires_grad[info.param_indices[name]]
        )
        return (sorted({*keys, *others}) if state["state"] else keys), own

    def gather_infos(original: Any, fsdp: Any, states: Any) -> Any:
        gathered = original(fsdp, states)
        own = gathered[fsdp.rank]
        known = next((one for one in own.values() if one.tensors), None)
        if known is not None:
            shapes = {
                name: module._PosDimTensorInfo(torch.Size((1,)), info.dtype)
                for name, info in known.tensors.items()
            }
            theirs = module.StateInfo(shapes, known.scalar_tensors, known.non_tensors)
            filled = {name: one if states[name] else theirs for name, one in own.items()}
            gathered = [own if rank == fsdp.rank else filled for rank in range(len(gathered))]
        return gathered

    if hasattr(module, "_allgather_state_info"):
        patches.wrap(module, "_map_param_key_to_optim_keys", add_names_of_others)
        patches.wrap(module, "_allgather_state_info", gather_infos)
