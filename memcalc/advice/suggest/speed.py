"""How fast a plan may train: operations and bytes that were counted, over what the card can do.

A step takes at least its operations over the card's peak and the bytes its optimizer moves over the
memory's bandwidth. Real training reaches a part of the peak: 30 to 50 % is taken, which is what
large runs publish (PaLM, Chowdhery et al. 2022, arXiv:2204.02311, table 3: 21 to 46 %; Megatron-LM,
Narayanan et al. 2021, arXiv:2104.04473: 44 to 52 %). Small batches and kernels reach less.
"""

from __future__ import annotations

from memcalc.advice.suggest.records import Speed
from memcalc.catalog.gpus import Gpu
from memcalc.records.prediction import Prediction
from memcalc.records.trace import Component
from memcalc.workload import layouts

UTILISATION = (0.3, 0.5)
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
    samples = plan.batch * plan.grad_accum * layouts.replicas(plan)
    low, high = (
        samples / (prediction.flops / (gpu.tensor_flops * part) + moved / gpu.bandwidth)
        for part in UTILISATION
    )
    return Speed(low=low, high=high, tokens=prediction.seq)
