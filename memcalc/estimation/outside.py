"""What a process holds of a GPU outside PyTorch's allocator: its context, and NCCL's share."""

from __future__ import annotations

from msgspec.structs import replace

from memcalc.allocator.context import outside
from memcalc.allocator.nccl import nccl_span, together
from memcalc.catalog.gpus import Gpu
from memcalc.records.plan import Plan
from memcalc.records.prediction import Part, Span
from memcalc.workload import layouts

CONTEXT = "CUDA context, before the first tensor"
CODE = "code of kernels and handles of libraries"
NCCL = "buffers of NCCL"


def outside_span(gpu: Gpu | None, plan: Plan | None = None) -> Span:
    """Bytes outside the allocator with a model there.

    Args:
        gpu: which; ``None``: any.
        plan: what runs; ``None``: a run on one GPU.
    """
    held = outside(gpu)
    groups = layouts.spread(plan).groups if plan is not None else ()
    named = {CONTEXT: held.context, CODE: held.modules}
    total = held.total
    if groups:
        named[NCCL] = nccl_span(gpu, groups)
        total = together(total, named[NCCL])
    return replace(total, parts=tuple(_part(name, span) for name, span in named.items()))


def _part(name: str, span: Span) -> Part:
    return Part(name=name, low=span.low, likely=span.likely, high=span.high, source=span.source)
