"""Optimizer state in shards: DDP with PyTorch's ``ZeroRedundancyOptimizer``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from memcalc.workload.layouts import ddp

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch


def optimizer(
    kind: Callable[..., torch.optim.Optimizer], parameters: list[Any], **arguments: Any
) -> torch.optim.Optimizer:
    """Make a ZeroRedundancyOptimizer of this class over this rank's share of parameters."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    # It says that it takes a class, and calls it.
    sharded: Any = ZeroRedundancyOptimizer
    made: torch.optim.Optimizer = sharded(parameters, kind, **arguments)
    return made


LAYOUT = replace(
    ddp.LAYOUT,
    name="zero1",
    summary="DDP with the optimizer's state in shards",
    handed_over=None,
    optimizer=optimizer,
    even=lambda model, sizes: False,
)
