"""DeepSpeed's second stage: optimizer state and gradients in shards.

The model waits on the host; ``deepspeed.initialize`` casts it, moves it and takes it over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcalc.workload.layouts import Layout, Rank

if TYPE_CHECKING:
    import torch

OPTIONS = (
    *("allgather_bucket_size", "allgather_partitions", "communication_data_type"),
    *("contiguous_gradients", "grad_accum_dtype", "offload", "overlap_comm"),
    *("reduce_bucket_size", "reduce_scatter", "round_robin_gradients", "sub_group_size"),
)
"""Names that DeepSpeed's file has; ``offload=cpu`` keeps the optimizer's state on the host."""


def place(model: torch.nn.Module, rank: Rank) -> torch.nn.Module:
    """Give the model memory on the host."""
    from memcalc.workload.blocks import to_empty

    to_empty(model, "cpu", rank.fill)
    return model


LAYOUT = Layout(
    name="zero2",
    summary="DeepSpeed: state and gradients in shards",
    place=place,
    handed_over=place,
    options=OPTIONS,
    loop="deepspeed",
    package="deepspeed",
)
