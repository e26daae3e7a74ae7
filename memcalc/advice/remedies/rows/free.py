"""Remedies without a cost: the same result at the same speed."""

from __future__ import annotations

import re
from collections.abc import Iterator

from memcalc import registry
from memcalc.advice.remedies.records import Remedy
from memcalc.advice.remedies.rows import row
from memcalc.catalog import models
from memcalc.records.plan import Plan
from memcalc.workload import loops

_FUSED = "torch.optim documentation (2.13): fused is usually faster than foreach"
_SET_TO_NONE = "torch.optim.Optimizer.zero_grad (2.13): the default since 2.0"
_OUTPUTS = "unreferenced tensors are freed; the Trainer keeps no outputs either (transformers 5.23)"
_CACHE = "only generation reads it; TrainingArguments.use_cache is False (transformers 5.23)"
_SDPA = "Dao et al. 2022, arXiv:2205.14135: exact attention, and faster"
_EXPANDABLE = "CUDA semantics in PyTorch's documentation (2.13): expandable_segments"
_NO_GPU = "a CPU run has no CUDA allocator and no CUDA kernels"
_SETTING = re.compile(r",?expandable_segments:\w*")
_NONE = "none known"


def of_training(plan: Plan) -> Iterator[Remedy]:
    """Memory that a step holds without need: the optimizer's lists, gradients, outputs, a cache."""
    choice = registry.of(plan)
    if choice.kind in ("foreach", "for-loop"):
        settled = tuple(one for one in plan.optim_args if one[0] not in ("fused", "foreach"))
        none = None if "fused" in choice.row.defaults else f"{choice.row.name} has no fused step"
        yield row(
            *(0, "fused", "fused optimizer (--optim-arg fused=true)", _NONE, _FUSED),
            unfit=_NO_GPU if plan.target == "cpu" else none,
            optim_args=(*settled, ("fused", True)),
        )
    if not plan.set_to_none:
        title = "zero_grad(set_to_none=True)"
        yield row(0, "set_to_none", title, _NONE, _SET_TO_NONE, set_to_none=True)
    if loops.of(plan).keep_outputs(plan):
        title = "drop the outputs: loss = model(**batch).loss (--no-keep-outputs)"
        cost = "none, unless something reads them after the loss"
        yield row(0, "outputs", title, cost, _OUTPUTS, keep_outputs=False)
    config = models.find(plan.model).config or {}
    off = config.get("use_cache") is False or plan.checkpointing or plan.loop == "trainer"
    if plan.kv_cache or (plan.kv_cache is None and not off):
        title = "return no keys and values: use_cache=False (--no-kv-cache)"
        cost = "none: training does not read them"
        yield row(0, "kv cache", title, cost, _CACHE, kv_cache=False)


def of_kernels(plan: Plan) -> Iterator[Remedy]:
    """Attention whose scores are not written down, and segments that grow."""
    if plan.attention in ("eager", "math"):
        title = "PyTorch's fused attention (--attention auto)"
        yield row(0, "sdpa", title, _NONE, _SDPA, attention="auto")
    yield from expandable(plan)


def expandable(plan: Plan) -> Iterator[Remedy]:
    """Segments grow, so free memory lies in one piece."""
    packed = "".join(plan.alloc_conf.split())
    if "expandable_segments:true" not in packed.lower():
        kept = _SETTING.sub("", packed).strip(",")
        setting = ",".join(filter(None, (kept, "expandable_segments:True")))
        yield row(
            *(0, "expandable", f"expandable segments (--alloc-conf {setting})", _NONE, _EXPANDABLE),
            unfit=_NO_GPU if plan.target == "cpu" else None,
            alloc_conf=setting,
        )
