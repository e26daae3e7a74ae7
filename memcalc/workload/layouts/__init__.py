"""How a run is spread over GPUs: one file a layout. So far there is one GPU.

A layout wraps the model once it is on its device and before the optimizer is made over its
parameters: that is where DistributedDataParallel, FSDP's ``fully_shard`` and tensor parallelism
stand in people's scripts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from memcalc.records.plan import Plan

if TYPE_CHECKING:
    import torch


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """A way over GPUs."""

    name: str
    wrap: Callable[[torch.nn.Module], torch.nn.Module]
    """Takes a model on its device and returns what the loop trains."""


def of(plan: Plan) -> Layout:
    """The layout of a plan."""
    from memcalc.workload.layouts.single import LAYOUT

    return LAYOUT
