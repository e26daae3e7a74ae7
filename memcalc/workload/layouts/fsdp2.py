"""Parameters, gradients and states in shards: ``fully_shard`` of each block and of the root.

The model is on the meta device, is sharded, gets its memory, and is tied again.
"""

from __future__ import annotations

import contextlib
import importlib
import math
from typing import TYPE_CHECKING, Any

from memcalc.dialects.accelerate import wrapped_by
from memcalc.errors import UsageError
from memcalc.records.names import WRAPS
from memcalc.workload.layouts import Layout, Rank

if TYPE_CHECKING:
    import torch
    from torch.distributed.device_mesh import DeviceMesh


def place(model: torch.nn.Module, rank: Rank) -> torch.nn.Module:
    """Shard the model over the inner dimension of the mesh and give it memory."""
    loaded = is_loaded(model)
    shard(model, mesh(rank), rank.options)
    if not loaded:
        materialize(model, rank)
    return model


def mesh(rank: Rank) -> DeviceMesh:
    """All ranks, as shards or as replicas of shards."""
    from torch.distributed.device_mesh import init_device_mesh

    names = ("replicate", "shard")[-len(rank.sizes) :]
    return init_device_mesh(rank.device.type, rank.sizes, mesh_dim_names=names)


def on_the_host(model: torch.nn.Module, rank: Rank) -> torch.nn.Module:
    """Give the model memory on the host, from where accelerate takes it."""
    from memcalc.workload.blocks import to_empty

    if not is_loaded(model):
        to_empty(model, "cpu", rank.fill)
    return model


def is_loaded(model: torch.nn.Module) -> bool:
    """It has memory already, as a quantized model has on each GPU, whole."""
    return not any(parameter.is_meta for parameter in model.parameters())


def shard(model: torch.nn.Module, mesh: Any, options: dict[str, Any]) -> None:
    """Shard each block, then what is left."""
    from torch.distributed import fsdp

    from memcalc.workload.blocks import blocks, dtype_of

    home: Any = fsdp
    if not hasattr(fsdp, "fully_shard"):  # PyTorch 2.3 to 2.5
        home = importlib.import_module("torch.distributed._composable.fsdp")
    if wrapped_by(options) != WRAPS[0]:
        raise UsageError(
            f"--parallel-arg auto_wrap_policy={options['auto_wrap_policy']} is accelerate's, and "
            "fully_shard has none: write --loop accelerate beside --parallel fsdp2, or --parallel "
            "fsdp1."
        )
    said: dict[str, Any] = {"mesh": mesh}
    dtypes = {name: dtype_of(options[name]) for name in _MIXED if name in options}
    if dtypes:
        said["mp_policy"] = home.MixedPrecisionPolicy(**dtypes)
    if options.get("offload") == "cpu":
        said["offload_policy"] = home.CPUOffloadPolicy()
    if "reshard_after_forward" in options:
        said["reshard_after_forward"] = options["reshard_after_forward"]
    for block in blocks(model, str(options.get("transformer_layer_cls_to_wrap", ""))):
        home.fully_shard(block, **said)
    home.fully_shard(model, **said)


def materialize(model: torch.nn.Module, rank: Rank) -> None:
    """Give a sharded model memory; buffers are no part of shards, and always on the device."""
    from memcalc.workload.blocks import to_empty

    # Where the shards are while they are not used.
    to_empty(model, "cpu" if rank.options.get("offload") == "cpu" else rank.device, rank.fill)
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = buffer.to(rank.device)


def quiet(model: torch.nn.Module, last: bool) -> contextlib.AbstractContextManager[None]:
    """Gradients are reduced with the last micro-batch alone."""
    synchronize: Any = model.set_requires_gradient_sync
    synchronize(last)
    return contextlib.nullcontext()


def even(model: torch.nn.Module, sizes: tuple[int, ...]) -> bool:
    """Whether each parameter's rows can be divided by all ranks."""
    return all(p.dim() and p.shape[0] % math.prod(sizes) == 0 for p in model.parameters())


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
