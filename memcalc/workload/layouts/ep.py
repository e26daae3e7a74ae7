"""Whole experts on each GPU, and tokens sent to theirs: transformers' own expert parallelism.

The rest of the model is in shards of FSDP2 among the same ranks, and so are copies of an expert.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from memcalc.errors import UsageError
from memcalc.imports import line
from memcalc.workload.layouts import Rank, fsdp2, tp

if TYPE_CHECKING:
    import torch


def divide(model: torch.nn.Module, rank: Rank, _: Any) -> None:
    """Keep only this rank's experts of the model, and shard those with FSDP2.

    Raises:
        UsageError: transformers refuses the sizes, or the model has no experts that it divides.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    try:
        from transformers.distributed import DistributedConfig
        from transformers.distributed.expert_parallel import apply_expert_parallelism
    except ImportError:
        told = "Expert parallelism is transformers' own, since 5.21: install a newer one."
        raise UsageError(told) from None
    over, kind = rank.spread, rank.device.type
    inner = over.axes.get("tp", 1)
    within = inner * over.axes.get("dp_shard", 1) * over.axes.get("cp", 1)
    try:
        DistributedConfig(tp_size=inner, fsdp_size=within // inner, ep_size=over.experts)
        # The products are divided already.
        config = DistributedConfig(fsdp_size=within, ep_size=over.experts)
        _, plan, _ = model._resolve_parallel_plans(config)  # type: ignore[operator]
    except (AttributeError, ValueError) as error:
        raise UsageError(f"{line(error).rstrip('.')}: choose another ep, or fsdp2.") from None
    if "ep_dispatch_experts" not in plan.values():
        raise UsageError(
            f"{type(model).__name__} has no experts that transformers sends tokens to "
            "(base_model_ep_plan): choose --parallel fsdp2."
        )
    replicas = over.axes.get("dp_replicate", 1)
    names = ("outer", "dp_replicate", "efsdp", "ep")
    sizes = (over.stages, replicas, within // over.experts, over.experts)
    mesh = init_device_mesh(kind, sizes, mesh_dim_names=names)
    same = init_device_mesh(kind, (over.world // inner, inner), mesh_dim_names=("other", "tp"))
    try:
        apply_expert_parallelism(model, mesh["ep"], same["tp"], plan)
    except ValueError as error:
        raise UsageError(f"{line(error).rstrip('.')}: choose another ep, or fsdp2.") from None
    copies = mesh[("dp_replicate", "efsdp")] if replicas > 1 else mesh["efsdp"]
    given = fsdp2.arguments(rank.options)
    for name, module in model.named_modules():
        if plan.get(name) == "ep_dispatch_experts":
            sharded: Any = fully_shard(module, mesh=copies, **given)
            # As transformers does (``apply_fully_sharded_data_parallelism``).
            sharded.set_gradient_divide_factor(float(replicas * within // inner))
            if within > over.experts:
                sharded.set_force_sum_reduction_for_comms(True)


LAYOUT = replace(
    tp.LAYOUT,
    name="ep",
    summary="experts divided, such as ep=8 or ep=4,fsdp2=8 (of which ep is a part)",
    divide=divide,
    options=(),
)
