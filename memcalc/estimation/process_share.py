"""A process's GPU memory outside PyTorch's allocator: context and NCCL."""

from msgspec.structs import replace

from memcalc.allocator.context import eager_span, library_span, outside
from memcalc.allocator.nccl import nccl_span, together
from memcalc.catalog.gpus import Gpu
from memcalc.estimation.question import version_of
from memcalc.records.plan import Plan
from memcalc.records.prediction import Part, Span
from memcalc.workload import layouts

CONTEXT = "CUDA context, before the first tensor"
CODE = "code of kernels and handles of libraries"
NCCL = "buffers of NCCL"
EAGER = "CUDA context and all kernels of PyTorch, loaded at the start"
CUDNN = "code of cuDNN's convolutions, loaded whole"
OLD_DRIVER = "all kernels at the start, with a driver before 515"
_SINCE_515 = (2, 1)
"""PyTorch of which every build needs a driver that loads kernels lazily: those for CUDA 12 run on
525 and later, and 2.0 was built for 11.7, which runs on 450 and later. Sources: CUDA Compatibility,
minimum driver versions; CUDA Programming Guide 4.7.3, requirements for lazy loading (515)."""


def outside_span(
    gpu: Gpu | None,
    plan: Plan | None = None,
    *,
    convolves: bool = False,
    groups: tuple[int, ...] = (),
) -> Span:
    """Bytes outside the allocator with a model there.

    Args:
        gpu: which; ``None``: any.
        plan: what runs; ``None``: a run on one GPU.
        convolves: it has convolutions, for which cuDNN is loaded.
        groups: processes in each group that communicates, beside those of the plan's layout; of a
            script these are all.
    """
    named = _loaded(gpu, plan, convolves=convolves)
    total = named.pop(None)
    if plan is not None and not plan.command:
        groups = (*groups, *layouts.spread(plan).groups)
    if groups:
        named[NCCL] = nccl_span(gpu, groups)
        total = together(total, named[NCCL])
    parts = tuple(
        Part(name=name, low=span.low, likely=span.likely, high=span.high, source=span.source)
        for name, span in named.items()
        if name is not None
    )
    return replace(total, parts=parts)


def _loaded(gpu: Gpu | None, plan: Plan | None, *, convolves: bool) -> dict[str | None, Span]:
    """Context and code by name, and under ``None`` the whole, as the plan's kernels are loaded."""
    held = outside(gpu)
    lazy: dict[str | None, Span] = {CONTEXT: held.context, CODE: held.modules, None: held.total}
    if gpu is None or plan is None or plan.module_loading == "lazy":
        return lazy
    version = version_of(plan.torch)
    if plan.module_loading is None and version >= _SINCE_515:
        return lazy
    # All kernels of a library are loaded at once.
    bare = whole = eager_span(gpu)
    named: dict[str | None, Span] = {EAGER: bare}
    library = library_span(gpu, version) if convolves else None
    if library is not None:
        whole = together(bare, library)
        named[CUDNN] = library
    if plan.module_loading == "eager":
        return {**named, None: whole}
    more = max(whole.high - held.total.high, 0)
    old = Span(low=0, likely=0, high=more, source=f"PyTorch 2.0 runs there; {whole.source}")
    return {**lazy, OLD_DRIVER: old, None: together(held.total, old)}
