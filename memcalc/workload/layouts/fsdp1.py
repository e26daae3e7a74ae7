"""Shards by FullyShardedDataParallel, the first version: each block is one flat parameter."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from memcalc.dialects.fsdp import wrapped_by
from memcalc.errors import UsageError
from memcalc.imports import line
from memcalc.records.plan import Plan
from memcalc.workload.layouts import Layout, Rank, ddp, fsdp2

if TYPE_CHECKING:
    import torch
    from torch.distributed.fsdp import MixedPrecision


def place(model: torch.nn.Module, rank: Rank) -> torch.nn.Module:
    """Wrap the model and its blocks in FullyShardedDataParallel."""
    from torch.distributed.fsdp import (
        BackwardPrefetch,
        CPUOffload,
        FullyShardedDataParallel,
        ShardingStrategy,
    )

    from memcalc.workload.blocks import to_empty

    options = rank.options
    prefetch = str(options.get("backward_prefetch", "BACKWARD_PRE"))
    if not fsdp2.is_loaded(model):
        to_empty(model, "cpu", rank.filler)
    check = check_ties(model)
    wrap = functools.partial(
        FullyShardedDataParallel,
        device_mesh=fsdp2.mesh(rank) if len(rank.spread.axes) > 1 else None,
        auto_wrap_policy=_auto_wrap_policy(model, options),
        mixed_precision=_mixed_precision(options),
        device_id=rank.device,
        use_orig_params=options.get("use_orig_params", True),
        # HYBRID_SHARD_ZERO2 is private in PyTorch.
        sharding_strategy={one.name.removeprefix("_"): one for one in ShardingStrategy}[
            str(options.get("sharding_strategy", "FULL_SHARD")).upper().removeprefix("_")
        ],
        backward_prefetch=getattr(BackwardPrefetch, prefetch.upper(), None),
        forward_prefetch=bool(options.get("forward_prefetch", False)),
        cpu_offload=CPUOffload(True) if options.get("offload") == "cpu" else None,
    )
    try:
        wrapped = wrap(model)
    except ValueError as error:
        if "uniform dtype" not in str(error):
            raise
        raise UsageError(
            f"FullyShardedDataParallel makes one tensor of a unit's weights: {line(error)}. Type "
            "--no-autocast-adapter-dtype where adapters differ from the weights, or "
            "--parallel fsdp2."
        ) from None
    check(wrapped)
    return wrapped


def check_ties(model: torch.nn.Module) -> Callable[[torch.nn.Module], None]:
    """Return a check that modules with tied weights are in the same FSDP unit.

    FSDP gathers a flat parameter for its own unit only. The check raises ``UsageError``.
    """
    owners: dict[int, list[torch.nn.Module]] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            owners.setdefault(id(parameter), []).append(module)

    def check(wrapped: torch.nn.Module) -> None:
        units: dict[torch.nn.Module, torch.nn.Module] = {}
        for unit in wrapped.modules():
            if isinstance(unit, type(wrapped)):
                # Inner units come later and overwrite.
                units.update(dict.fromkeys(unit.modules(), unit))
        if any(len({units[module] for module in modules}) > 1 for modules in tied):
            raise UsageError(
                "Tied weights would be in two units of FullyShardedDataParallel, which PyTorch "
                "does not support: wrap only the layers (auto_wrap_policy=TRANSFORMER_BASED_WRAP) "
                "or nothing (NO_WRAP)."
            )

    tied = [modules for modules in owners.values() if len(modules) > 1]
    return check


def _auto_wrap_policy(model: torch.nn.Module, options: dict[str, Any]) -> Any:
    """Return FSDP's auto-wrap policy: by block class, by parameter count, or None."""
    from torch.distributed.fsdp import wrap

    from memcalc.workload.blocks import blocks

    name = wrapped_by(options)
    if name == "NO_WRAP":
        return None
    if any(hasattr(parameter, "quant_state") for parameter in model.parameters()):
        # Each adapter is a unit of its own, as the Trainer has it too.
        from peft.utils.other import fsdp_auto_wrap_policy

        return fsdp_auto_wrap_policy(model)
    if name == "SIZE_BASED_WRAP":
        # Without a number PyTorch has its own default; accelerate drops 0 likewise.
        least = options.get("min_num_params", 0)
        said = {"min_num_params": least} if least else {}
        return functools.partial(wrap.size_based_auto_wrap_policy, **said)
    units = blocks(model, str(options.get("transformer_layer_cls_to_wrap", "")))
    return functools.partial(
        wrap.transformer_auto_wrap_policy, transformer_layer_cls={type(one) for one in units}
    )


def _mixed_precision(options: dict[str, Any]) -> MixedPrecision | None:
    from torch.distributed.fsdp import MixedPrecision

    from memcalc.workload.blocks import parse_dtype

    if "param_dtype" not in options and "reduce_dtype" not in options:
        return None
    low = parse_dtype(options.get("param_dtype"))
    reduce = parse_dtype(options.get("reduce_dtype", options.get("param_dtype")))
    return MixedPrecision(param_dtype=low, reduce_dtype=reduce, buffer_dtype=low)


def check(plan: Plan) -> None:
    """Raise UsageError for FSDP settings that contradict each other (mesh, strategy, dtypes).

    Raises:
        UsageError: the mesh is missing, or is given to another strategy; or norms are cast.
    """
    options = dict(plan.parallel_args)
    if plan.scheme is not None and plan.kbit_prepare and plan.precision not in ("fp32", "tf32"):
        raise UsageError(
            "FullyShardedDataParallel makes one tensor of a unit's weights, and preparing a "
            "quantized base casts its norms to fp32: type --no-kbit-prepare, or --parallel fsdp2."
        )
    strategy = str(options.get("sharding_strategy", "FULL_SHARD"))
    hybrid = "HYBRID" in strategy.upper()
    if hybrid and "device_mesh" not in options:
        raise UsageError(
            f"sharding_strategy {strategy} shards among the GPUs of each machine: give machines "
            "and GPUs per machine, as in --parallel-arg device_mesh=2x8."
        )
    if "device_mesh" in options and not hybrid:
        raise UsageError(
            f"--parallel-arg device_mesh needs sharding_strategy=HYBRID_SHARD, and {strategy} "
            "shards over all GPUs: leave it out."
        )


def clip(model: torch.nn.Module, norm: float) -> Any:
    """Clip the gradients by FSDP's own method, which knows all shards."""
    own: Any = model.clip_grad_norm_
    return own(norm)


LAYOUT = Layout(
    name="fsdp1",
    summary="shards by FullyShardedDataParallel",
    place=place,
    handed_over=fsdp2.on_the_host,
    options=(
        *("auto_wrap_policy", "backward_prefetch", "device_mesh", "forward_prefetch"),
        *("load", "min_num_params", "offload", "param_dtype", "reduce_dtype"),
        *("sharding_strategy", "transformer_layer_cls_to_wrap", "use_orig_params"),
    ),
    mixed=("param_dtype", "reduce_dtype"),
    check=check,
    checked=check_ties,
    quiet=ddp.quiet,
    clip=clip,
)
