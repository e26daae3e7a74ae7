"""Optimizer state in shards: DDP with PyTorch's ``ZeroRedundancyOptimizer``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memcalc.workload.layouts import Layout, ddp

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch


def optimizer(
    kind: Callable[..., torch.optim.Optimizer], parameters: list[Any], **arguments: Any
) -> torch.optim.Optimizer:
    """An optimizer of this kind over this rank's share of the parameters."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    # It says that it takes a class, and calls it.
    sharded: Any = ZeroRedundancyOptimizer
    made: torch.optim.Optimizer = sharded(parameters, kind, **arguments)
    return made


LAYOUT = Layout(
    name="zero1",
    summary="DDP with the optimizer's state in shards",
    place=ddp.place,
    options=ddp.LAYOUT.options,
    optimizer=optimizer,
    quiet=ddp.quiet,
    even=lambda model, sizes: False,
)
