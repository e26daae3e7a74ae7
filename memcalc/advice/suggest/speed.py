"""How fast a plan may train: operations and bytes that were counted, over what the card can do.

A step takes at least its operations over the card's peak and the bytes its optimizer moves over the
memory's bandwidth. Real training reaches a part of the peak: 30 to 50 % is taken, which is what
large runs publish (PaLM, Chowdhery et al. 2022, arXiv:2204.02311, table 3: 21 to 46 %; Megatron-LM,
Narayanan et al. 2021, arXiv:2104.04473: 44 to 52 %). Small batches and kernels reach less.
Weights that wait in host memory cross the bus in forward and backward, and gradients go back; the
update on the CPU is not counted.
"""

from __future__ import annotations

from memcalc.advice.suggest.records import Speed
from memcalc.catalog.gpus import Gpu
from memcalc.records.plan import Plan
from memcalc.records.prediction import Prediction
from memcalc.records.trace import Component
from memcalc.workload import layouts

UTILISATION = (0.3, 0.5)
BUS = (15.75e9, 63e9)
"""Bytes a second of PCI Express 3.0 and 5.0 x16 in one direction, by PCI-SIG's specifications."""
_MOVED = {Component.WEIGHTS: 2, Component.MASTER_WEIGHTS: 2, Component.OPTIMIZER_STATE: 2}
"""How often a step reads or writes what is held; gradients are read once more."""


def speed(prediction: Prediction, gpu: Gpu) -> Speed | str:
    """Samples a second of all GPUs together, or why that is not known."""
    plan = prediction.plan
    if gpu.tensor_flops is None:
        return f"no published peak of {gpu.name} is on record"
    if prediction.flops is None:
        return "operations were not counted"
    if plan.precision == "fp32":
        return "the peaks on record are those of half precision"
    moved = sum(prediction.components.get(name, 0) * n for name, n in _MOVED.items())
    moved += prediction.gradients or 0
    sent = _over_the_bus(prediction)
    if sent is None:
        return "how much of a quantized base crosses the bus is not counted"
    samples = plan.batch * plan.grad_accum * layouts.replicas(plan)
    low, high = (
        samples
        / (prediction.flops / (gpu.tensor_flops * part) + moved / gpu.bandwidth + sent / bus)
        for part, bus in zip(UTILISATION, BUS, strict=True)
    )
    return Speed(low=low, high=high, tokens=prediction.seq)


def offloads(plan: Plan) -> bool:
    """Whether shards wait in host memory."""
    return "offload" in dict(plan.parallel_args)


def _over_the_bus(prediction: Prediction) -> float | None:
    """Bytes between host and GPU in a step; ``None``: that is not known."""
    plan = prediction.plan
    if not offloads(plan):
        return 0
    if plan.scheme is not None:
        return None
    element = 2 if plan.half_weights else 4
    crossing = 2 * prediction.parameters + prediction.trainable
    return crossing * element * plan.grad_accum / layouts.spread(plan).shards
