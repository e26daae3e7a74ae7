"""Parameters, gradients and states in shards: ``fully_shard`` of each block and of the root.

The model is on the meta device, is sharded, gets its memory, and is tied again.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from memcalc.dialects.fsdp import wrapped_by
from memcalc.errors import UsageError
from memcalc.records.names import WRAPS
from memcalc.workload.layouts import Layout, Rank, find
from memcalc.workload.spread import Spread

if TYPE_CHECKING:
    import torch
    from torch.distributed.device_mesh import DeviceMesh


def place(model: torch.nn.Module, rank: Rank) -> torch.nn.Module:
    """Split the model by the inner layouts, shard it with FSDP2 and allocate its memory."""
    loaded = is_loaded(model)
    divide(model, rank, mesh(rank))
    if not loaded:
        materialize(model, rank)
    return model


def divide(model: torch.nn.Module, rank: Rank, mesh: Any) -> None:
    """Split a model or stage by its inner layouts (cp, tp, ep), then shard it with FSDP2."""
    over = rank.spread
    for name in over.inside:
        layout = find(name)
        if layout.divide is not None:
            layout.divide(model, rank, mesh)
    if not over.sharding:
        return
    names = over.sharding
    if len(names) > 1:
        # Ranks of a context are flattened with the shards, as torchtitan and accelerate do.
        mesh[names]._flatten("dp_shard_cp")
        names = ("dp_shard_cp",)
    replicas = ("dp_replicate",) if "dp_replicate" in over.axes else ()
    shard(model, mesh[(*replicas, *names)], rank.options)


def mesh(rank: Rank) -> DeviceMesh:
    """Return the device mesh over all ranks."""
    from torch.distributed.device_mesh import init_device_mesh

    over = rank.spread
    return init_device_mesh(rank.device.type, over.sizes, mesh_dim_names=tuple(over.axes))


def on_the_host(model: torch.nn.Module, rank: Rank) -> torch.nn.Module:
    """Allocate the model's memory on the host, from where accelerate shards it."""
    from memcalc.workload.blocks import to_empty

    if not is_loaded(model):
        to_empty(model, "cpu", rank.filler)
    return model


def is_loaded(model: torch.nn.Module) -> bool:
    """Return True if no parameter is on the meta device, as for a quantized base."""
    return not any(parameter.is_meta for parameter in model.parameters())


def shard(model: torch.nn.Module, mesh: Any, options: dict[str, Any]) -> None:
    """Apply ``fully_shard`` to each block of the model, then to the model."""
    from torch.distributed.fsdp import fully_shard

    from memcalc.workload.blocks import blocks

    given = arguments(options)
    for block in blocks(model, str(options.get("transformer_layer_cls_to_wrap", ""))):
        fully_shard(block, mesh=mesh, **given)
    fully_shard(model, mesh=mesh, **given)


def arguments(options: dict[str, Any]) -> dict[str, Any]:
    """Return ``fully_shard``'s keyword arguments except the mesh.

    Raises:
        UsageError: a policy of wrapping is asked for, and it has none.
    """
    from torch.distributed import fsdp

    from memcalc.workload.blocks import parse_dtype

    if wrapped_by(options) != WRAPS[0]:
        raise UsageError(
            f"--parallel-arg auto_wrap_policy={options['auto_wrap_policy']} is accelerate's, and "
            "fully_shard has none: write --loop accelerate beside --parallel fsdp2, or --parallel "
            "fsdp1."
        )
    given: dict[str, Any] = {}
    dtypes: dict[str, Any] = {
        name: parse_dtype(options[name]) for name in _MIXED if name in options
    }
    if dtypes:
        given["mp_policy"] = fsdp.MixedPrecisionPolicy(**dtypes)
    if options.get("offload") == "cpu":
        given["offload_policy"] = fsdp.CPUOffloadPolicy()
    if "reshard_after_forward" in options:
        given["reshard_after_forward"] = options["reshard_after_forward"]
    return given


def materialize(model: torch.nn.Module, rank: Rank) -> None:
    """Allocate a sharded model's memory; buffers always on the device."""
    from memcalc.workload.blocks import to_empty

    # Where the shards are while they are not used.
    to_empty(model, "cpu" if rank.options.get("offload") == "cpu" else rank.device, rank.filler)
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = buffer.to(rank.device)


def quiet(model: torch.nn.Module, last: bool) -> contextlib.AbstractContextManager[None]:
    """Turn gradient reduction on only for the last micro-batch; return an empty context."""
    synchronize: Any = getattr(model, "set_requires_gradient_sync", None)
    if synchronize is not None:
        synchronize(last)
    return contextlib.nullcontext()


def even(model: torch.nn.Module, over: Spread) -> bool:
    """Return True if all parameters' first dimensions divide evenly by the number of ranks."""
    return all(p.dim() and p.shape[0] % over.world == 0 for p in model.parameters())


_MIXED = ("param_dtype", "reduce_dtype", "output_dtype")
"""Source: accelerate 1.15, ``FullyShardedDataParallelPlugin.set_mixed_precision``."""

LAYOUT = Layout(
    name="fsdp2",
    summary="weights, gradients and states in shards (fully_shard)",
    place=place,
    handed_over=on_the_host,
    options=(
        *("auto_wrap_policy", "autocast", "load", "min_num_params", "offload", "output_dtype"),
        *("param_dtype", "reduce_dtype", "reshard_after_forward", "transformer_layer_cls_to_wrap"),
    ),
    mixed=_MIXED,
    casts=True,
    quiet=quiet,
    even=even,
)
