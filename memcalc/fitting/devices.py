"""The device that a question names."""

from __future__ import annotations

from memcalc.allocator.context import context_span
from memcalc.catalog import gpus as catalog
from memcalc.estimation.fits import Device
from memcalc.records.plan import Plan
from memcalc.units import format_bytes


def device_for(plan: Plan, memory: int | None) -> Device:
    """The device that a plan and a size name."""
    gpu = catalog.find(plan.gpu) if plan.gpu is not None else None
    capacity = memory if memory is not None else gpu.memory if gpu is not None else 0
    size = f" of {format_bytes(capacity)}" if memory is not None else ""
    return Device(
        name=f"{gpu.name if gpu is not None else 'a GPU'}{size}",
        capacity=capacity,
        context=context_span(gpu),
    )
