"""The GPU that a script sees."""

from __future__ import annotations

from typing import NamedTuple

from memcalc.allocator.context import context_span
from memcalc.catalog.gpus import Gpu
from memcalc.estimation.replays import UNLIMITED
from memcalc.units import GIB


class Card(NamedTuple):
    """Sizes in bytes."""

    name: str
    """By its driver."""
    total: int
    """What CUDA offers."""
    kept: int
    """What the driver keeps of the card, which NVML counts and CUDA does not offer."""
    outside: int
    """What the process holds outside the allocator."""
    room: int
    """What the allocator may take."""


def card(gpu: Gpu | None) -> Card:
    """A named GPU has the room that its context leaves; without one nothing is ever full."""
    context = context_span(gpu)
    outside = context.likely if context.likely is not None else context.low
    if gpu is None:
        return Card("NVIDIA A100-SXM4-80GB", 80 * GIB, 0, outside, UNLIMITED)
    kept = (gpu.nvml_memory or gpu.memory) - gpu.memory
    return Card(gpu.driver_name, gpu.memory, kept, outside, gpu.memory - outside)
