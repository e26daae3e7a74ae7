"""Remedies without a cost: the same result at the same speed."""

from __future__ import annotations

import re
from collections.abc import Iterator

from memcalc import registry
from memcalc.advice.remedies.records import Remedy
from memcalc.catalog import models
from memcalc.records.plan import Plan
from memcalc.workload import loops
from memcalc.workload.tasks import Task

_FUSED = "torch.optim documentation (2.13): fused is usually faster than foreach"
_SET_TO_NONE = "torch.optim.Optimizer.zero_grad (2.13): the default since 2.0"
_OUTPUTS = "unreferenced tensors are freed; the Trainer keeps no outputs either (transformers 5.23)"
_CACHE = "only generation reads it; TrainingArguments.use_cache is False (transformers 5.23)"
_SDPA = "Dao et al. 2022, arXiv:2205.14135: exact attention, and faster"
_EXPANDABLE = "CUDA semantics in PyTorch's documentation (2.13): expandable_segments"
_NO_GPU = "a CPU run has no CUDA allocator and no CUDA kernels"
_SETTING = re.compile(r",?expandable_segments:\w*")


def fused(plan: Plan, task: Task) -> Iterator[Remedy]:
    """One kernel for the whole step."""
    choice = registry.of(plan)
    if choice.kind not in ("foreach", "for-loop"):
        return
    settled = tuple(pair for pair in plan.optim_args if pair[0] not in ("fused", "foreach"))
    none = f"{choice.row.name} has no fused step" if "fused" not in choice.row.defaults else None
    yield Remedy(
        key="fused",
        title="fused optimizer (--optim-arg fused=true)",
        changes=(("optim_args", (*settled, ("fused", True))),),
        rank=0,
        cost="none known",
        source=_FUSED,
        unfit=_NO_GPU if plan.target == "cpu" else none,
    )


def set_to_none(plan: Plan, task: Task) -> Iterator[Remedy]:
    """Gradients are freed between steps."""
    if not plan.set_to_none:
        yield Remedy(
            key="set_to_none",
            title="zero_grad(set_to_none=True)",
            changes=(("set_to_none", True),),
            rank=0,
            cost="none known",
            source=_SET_TO_NONE,
        )


def outputs(plan: Plan, task: Task) -> Iterator[Remedy]:
    """Nothing is kept of a step but its loss."""
    if loops.of(plan).keep_outputs(plan):
        yield Remedy(
            key="outputs",
            title="drop the outputs: loss = model(**batch).loss (--no-keep-outputs)",
            changes=(("keep_outputs", False),),
            rank=0,
            cost="none, unless something reads them after the loss",
            source=_OUTPUTS,
        )


def kv_cache(plan: Plan, task: Task) -> Iterator[Remedy]:
    """Keys and values are not returned."""
    config = models.find(plan.model).config or {}
    off = config.get("use_cache") is False or plan.checkpointing or plan.loop == "trainer"
    if plan.kv_cache is False or (plan.kv_cache is None and off):
        return
    yield Remedy(
        key="kv cache",
        title="return no keys and values: use_cache=False (--no-kv-cache)",
        changes=(("kv_cache", False),),
        rank=0,
        cost="none: training does not read them",
        source=_CACHE,
    )


def attention(plan: Plan, task: Task) -> Iterator[Remedy]:
    """Scores of attention are not written down."""
    if plan.attention in ("eager", "math"):
        yield Remedy(
            key="sdpa",
            title="PyTorch's fused attention (--attention auto)",
            changes=(("attention", "auto"),),
            rank=0,
            cost="none known",
            source=_SDPA,
        )


def expandable(plan: Plan, task: Task) -> Iterator[Remedy]:
    """Segments grow, so free memory lies in one piece."""
    packed = "".join(plan.alloc_conf.split())
    if "expandable_segments:true" in packed.lower():
        return
    kept = _SETTING.sub("", packed).strip(",")
    setting = ",".join(filter(None, (kept, "expandable_segments:True")))
    yield Remedy(
        key="expandable",
        title=f"expandable segments (--alloc-conf {setting})",
        changes=(("alloc_conf", setting),),
        rank=0,
        cost="none known",
        source=_EXPANDABLE,
        unfit=_NO_GPU if plan.target == "cpu" else None,
    )
