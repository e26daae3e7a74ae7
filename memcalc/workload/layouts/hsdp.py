"""FSDP2 in several replicas: shards within a group of GPUs, copies of the whole between groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcalc.workload.layouts import Layout, Rank, fsdp2

if TYPE_CHECKING:
    import torch


def place(model: torch.nn.Module, rank: Rank) -> torch.nn.Module:
    """Shard the model over the inner dimension of the mesh."""
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh(rank.device.type, rank.sizes, mesh_dim_names=("replicate", "shard"))
    loaded = fsdp2.is_loaded(model)
    fsdp2.shard(model, mesh, rank.options)
    if not loaded:
        fsdp2.materialize(model, rank)
    return model


LAYOUT = Layout(
    name="hsdp",
    summary="replicas of FSDP2's shards, such as hsdp=2x4",
    place=place,
    options=fsdp2.LAYOUT.options,
    quiet=fsdp2.quiet,
    even=fsdp2.even,
    dimensions=2,
)
