"""A single GPU: the model without a wrapper."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcalc.workload.layouts import Layout, Rank

if TYPE_CHECKING:
    import torch


def place(model: torch.nn.Module, rank: Rank) -> torch.nn.Module:
    """Move the model to the device."""
    rank.move(model)
    return model


LAYOUT = Layout(name="single", summary="one GPU", place=place)
