"""Shards by FullyShardedDataParallel, the first version: each block is one flat parameter."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from memcalc.errors import UsageError
from memcalc.workload.layouts import Layout, Rank, ddp, wrapped_by

if TYPE_CHECKING:
    import torch
    from torch.distributed.fsdp import BackwardPrefetch, MixedPrecision, ShardingStrategy


def place(model: torch.nn.Module, rank: Rank) -> torch.nn.Module:
    """Wrap each block and the root; memory is made block by block as they are wrapped."""
    from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel

    options = rank.options
    return FullyShardedDataParallel(
        model,
        auto_wrap_policy=_policy(model, options),
        mixed_precision=_mixed(options),
        device_id=rank.device,
        use_orig_params=options.get("use_orig_params", True),
        sharding_strategy=_strategy(str(options.get("sharding_strategy", "FULL_SHARD"))),
        backward_prefetch=_prefetch(str(options.get("backward_prefetch", "BACKWARD_PRE"))),
        forward_prefetch=bool(options.get("forward_prefetch", False)),
        cpu_offload=CPUOffload(True) if options.get("offload") == "cpu" else None,
        param_init_fn=functools.partial(_made, rank),
    )


def _policy(model: torch.nn.Module, options: dict[str, Any]) -> Any:
    """What becomes a unit of its own: each block, or what has so many parameters, or nothing."""
    from torch.distributed.fsdp.wrap import (
        size_based_auto_wrap_policy,
        transformer_auto_wrap_policy,
    )

    from memcalc.workload.blocks import blocks

    name = wrapped_by(options)
    if name == "NO_WRAP":
        return None
    if name == "SIZE_BASED_WRAP":
        # accelerate hands on no number below 1 either, and PyTorch has its own.
        least = options.get("min_num_params", 0)
        said = {"min_num_params": least} if least else {}
        return functools.partial(size_based_auto_wrap_policy, **said)
    units = blocks(model, str(options.get("transformer_layer_cls_to_wrap", "")))
    return functools.partial(
        transformer_auto_wrap_policy, transformer_layer_cls={type(one) for one in units}
    )


def _made(rank: Rank, module: torch.nn.Module) -> None:
    if [*module.parameters(recurse=False), *module.buffers(recurse=False)]:
        module.to_empty(device=rank.device, recurse=False)
        rank.fill(module)


def _mixed(options: dict[str, Any]) -> MixedPrecision | None:
    from torch.distributed.fsdp import MixedPrecision

    from memcalc.workload.blocks import dtype_of

    if "param_dtype" not in options and "reduce_dtype" not in options:
        return None
    low = dtype_of(options.get("param_dtype"))
    reduce = dtype_of(options.get("reduce_dtype", options.get("param_dtype")))
    return MixedPrecision(param_dtype=low, reduce_dtype=reduce, buffer_dtype=low)


def _strategy(name: str) -> ShardingStrategy:
    from torch.distributed.fsdp import ShardingStrategy

    try:
        return ShardingStrategy[name.upper()]
    except KeyError:
        known = ", ".join(one.name for one in ShardingStrategy if "HYBRID" not in one.name)
        raise UsageError(f"{name!r} is not a sharding_strategy: choose one of {known}.") from None


def _prefetch(name: str) -> BackwardPrefetch | None:
    from torch.distributed.fsdp import BackwardPrefetch

    known = {one.name: one for one in BackwardPrefetch}
    if name.upper() not in (*known, "NO_PREFETCH"):
        raise UsageError(
            f"{name!r} is not a backward_prefetch: choose one of {', '.join(known)}, NO_PREFETCH."
        )
    return known.get(name.upper())


def clip(model: torch.nn.Module, norm: float) -> Any:
    """By its own method, which sees all shards."""
    own: Any = model.clip_grad_norm_
    return own(norm)


LAYOUT = Layout(
    name="fsdp1",
    summary="shards by FullyShardedDataParallel",
    place=place,
    options=(
        *("auto_wrap_policy", "backward_prefetch", "forward_prefetch", "min_num_params"),
        *("offload", "param_dtype", "reduce_dtype", "sharding_strategy"),
        *("transformer_layer_cls_to_wrap", "use_orig_params"),
    ),
    quiet=ddp.quiet,
    clip=clip,
)
