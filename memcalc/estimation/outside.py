"""What a process holds of a GPU outside PyTorch's allocator: its context, and NCCL's share."""

from __future__ import annotations

from memcalc.allocator.context import context_span
from memcalc.allocator.nccl import nccl_span, together
from memcalc.catalog.gpus import Gpu
from memcalc.records.plan import Plan
from memcalc.records.prediction import Span
from memcalc.workload import layouts


def outside_span(gpu: Gpu | None, plan: Plan | None = None) -> Span:
    """Bytes outside the allocator with a model there.

    Args:
        gpu: which; ``None``: any.
        plan: what runs; ``None``: a run on one GPU.
    """
    context = context_span(gpu)
    groups = layouts.spread(plan).groups if plan is not None else ()
    return together(context, nccl_span(gpu, groups)) if groups else context
