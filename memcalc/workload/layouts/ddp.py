"""Keeps the whole model on each GPU: ``DistributedDataParallel(model.to(device), ...)``."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from memcalc.workload.layouts import Layout, Rank, single

if TYPE_CHECKING:
    import torch


def place(model: torch.nn.Module, rank: Rank) -> torch.nn.Module:
    """Move the model to the device and wrap it in DistributedDataParallel."""
    from torch.nn.parallel import DistributedDataParallel

    rank.move(model)
    ids = None if rank.device.type == "cpu" else [rank.device.index]
    return DistributedDataParallel(model, device_ids=ids, **rank.options)


def quiet(model: torch.nn.Module, last: bool) -> contextlib.AbstractContextManager[None]:
    """Return ``no_sync()`` for all but the last micro-batch."""
    unsynchronized: Any = model.no_sync
    return contextlib.nullcontext() if last else unsynchronized()


LAYOUT = Layout(
    name="ddp",
    summary="the whole model on each GPU",
    place=place,
    handed_over=single.place,
    options=(
        *("bucket_cap_mb", "broadcast_buffers", "find_unused_parameters"),
        *("gradient_as_bucket_view", "static_graph"),
    ),
    quiet=quiet,
)
