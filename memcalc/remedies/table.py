"""What people do against too high a peak, as changes of a plan, and what each costs.

A row says what changes and what it costs, with the source of that; what it saves is never said
here, but estimated in full. ``rank`` orders by cost:

====  ===================================================================================
0     same arithmetic, no slower
1     same gradient from smaller pieces
2     products in half precision, weights and update in fp32
3, 4  same arithmetic, part of the forward runs twice, or no accumulation and no clipping
5     optimizer state in 8 bit
6     weights in half precision
7     other parameters train
====  ===================================================================================
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

from memcalc import registry
from memcalc.catalog import gpus
from memcalc.kernels.architectures import ARCHITECTURES
from memcalc.records.plan import Plan
from memcalc.records.trace import Trace
from memcalc.remedies.records import Change, Remedy
from memcalc.workload import loops, tasks

CHUNKS = 8
"""Pieces of a loss; the default of torchtune's ``CEWithChunkedOutputLoss`` (0.6)."""

_FUSED = "torch.optim documentation (2.13): fused is usually faster than foreach"
_SDPA = "Dao et al. 2022, arXiv:2205.14135: exact attention, and faster"
_AMP = "Micikevicius et al. 2018, arXiv:1710.03740: same accuracy in its trials, faster products"
_8BIT = "Dettmers et al. 2022, arXiv:2110.02861: same accuracy in its trials"
_PURE = "Zamirai et al. 2020, arXiv:2010.06192: nearest rounding loses small updates"
_RECOMPUTE = "Chen et al. 2016, arXiv:1604.06174; operations counted in the trace"
_IN_BACKWARD = "PyTorch's tutorial on fusing the optimizer step into the backward pass (2.13)"
_LORA = "Hu et al. 2021, arXiv:2106.09685: adapters train, the model is frozen"
_EXPANDABLE = "CUDA semantics in PyTorch's documentation (2.13): expandable_segments"
_ACCUMULATE = "mean of equal micro-batches is the mean of the batch; not so for batch norm"
_CHUNKED = "same loss up to rounding, held by memcalc's tests; operations counted in the trace"


def candidates(plan: Plan, trace: Trace) -> list[Remedy]:
    """The remedies that change this plan, cheapest first."""
    found = [remedy for make in _ROWS for remedy in make(plan, trace)]
    return sorted(found, key=lambda remedy: remedy.rank)


def accumulate(plan: Plan, pieces: int) -> Remedy:
    """The same batch in so many pieces, one after the other."""
    changes: tuple[Change, ...] = (
        ("batch", plan.batch // pieces),
        ("grad_accum", plan.grad_accum * pieces),
    )
    title = f"micro-batches of {plan.batch // pieces}, {plan.grad_accum * pieces} per step"
    cost = "same gradient; more and smaller kernels, slower where they leave the GPU idle"
    return _remedy("accumulate", title, changes, 1, cost, _ACCUMULATE)


def pieces_of(plan: Plan) -> list[int]:
    """Into how many equal pieces the batch can be cut, fewest first."""
    if plan.inputs:
        return []
    return [n for n in range(2, plan.batch + 1) if plan.batch % n == 0]


def _remedy(
    key: str, title: str, changes: tuple[Change, ...], rank: int, cost: str, source: str
) -> Remedy:
    return Remedy(key=key, title=title, changes=changes, rank=rank, cost=cost, source=source)


def _fused(plan: Plan, trace: Trace) -> list[Remedy]:
    choice = registry.of(plan)
    if choice.kind != "foreach" or "fused" not in choice.row.defaults or plan.target == "cpu":
        return []
    settled = tuple(pair for pair in plan.optim_args if pair[0] not in ("fused", "foreach"))
    changes: tuple[Change, ...] = (("optim_args", (*settled, ("fused", True))),)
    return [_remedy("fused", "fused optimizer (fused=True)", changes, 0, "none known", _FUSED)]


def _set_to_none(plan: Plan, trace: Trace) -> list[Remedy]:
    if plan.set_to_none:
        return []
    source = "torch.optim.Optimizer.zero_grad (2.13): the default since 2.0"
    title = "zero_grad(set_to_none=True)"
    return [_remedy("set_to_none", title, (("set_to_none", True),), 0, "none known", source)]


def _in_backward(plan: Plan, trace: Trace) -> list[Remedy]:
    clips = loops.of(plan).clip_to(plan) is not None
    if plan.optim_in_backward or plan.grad_accum > 1 or clips or plan.precision == "amp-fp16":
        return []
    title = "update inside backward (--optim-in-backward)"
    cost = "no accumulation, no clipping; one small launch a parameter"
    changes: tuple[Change, ...] = (("optim_in_backward", True),)
    return [_remedy("in backward", title, changes, 3, cost, _IN_BACKWARD)]


def _attention(plan: Plan, trace: Trace) -> list[Remedy]:
    if plan.attention not in ("eager", "math"):
        return []
    changes: tuple[Change, ...] = (("attention", "auto"),)
    return [_remedy("sdpa", "PyTorch's fused attention", changes, 0, "none known", _SDPA)]


def _expandable(plan: Plan, trace: Trace) -> list[Remedy]:
    if "expandable_segments" in plan.alloc_conf or plan.target == "cpu":
        return []
    setting = ",".join(filter(None, (plan.alloc_conf, "expandable_segments:True")))
    title = "PYTORCH_ALLOC_CONF=expandable_segments:True"
    changes: tuple[Change, ...] = (("alloc_conf", setting),)
    return [_remedy("expandable", title, changes, 0, "none known", _EXPANDABLE)]


def _accumulate(plan: Plan, trace: Trace) -> list[Remedy]:
    return [accumulate(plan, pieces) for pieces in pieces_of(plan)[:1]]


def _half(plan: Plan) -> str:
    """The half precision the GPU computes in."""
    if plan.gpu is not None and not ARCHITECTURES[gpus.find(plan.gpu).capability].bf16:
        return "fp16"
    return "bf16"


def _amp(plan: Plan, trace: Trace) -> list[Remedy]:
    if plan.precision not in ("fp32", "tf32"):
        return []
    half = _half(plan)
    title = f"autocast to {half} (--precision amp-{half})"
    cost = f"products in {half}; the update stays fp32"
    return [_remedy("amp", title, (("precision", f"amp-{half}"),), 2, cost, _AMP)]


def _chunked(plan: Plan, trace: Trace) -> list[Remedy]:
    if not tasks.find(trace.inventory.task).loss_in_pieces or plan.loss_chunks > 1:
        return []
    changes: tuple[Change, ...] = (("loss_chunks", CHUNKS),)
    title = f"loss in {CHUNKS} pieces (--loss-chunks {CHUNKS})"
    return [_remedy("chunked loss", title, changes, 3, "output head runs twice", _CHUNKED)]


def _checkpointing(plan: Plan, trace: Trace) -> list[Remedy]:
    if plan.checkpointing and plan.checkpoint_every == 1:
        return []
    every: tuple[Change, ...] = (("checkpointing", True), ("checkpoint_every", 1))
    title = "checkpoint every layer (--checkpointing)"
    whole = _remedy("checkpointing", title, every, 4, "layers run twice forward", _RECOMPUTE)
    if plan.checkpointing:
        return [whole]
    second: tuple[Change, ...] = (("checkpointing", True), ("checkpoint_every", 2))
    title = "checkpoint every second layer (--checkpointing --checkpoint-every 2)"
    cost = "half the layers run twice forward"
    return [_remedy("checkpointing/2", title, second, 3, cost, _RECOMPUTE), whole]


_IN_8BIT = {
    "adamw": "adamw8bit",
    "adamw_torch_fused": "adamw8bit",
    "bitsandbytes.adamw": "adamw8bit",
    "adamw32bit": "adamw8bit",
    "adam": "adam8bit",
    "bitsandbytes.adam": "adam8bit",
    "adam32bit": "adam8bit",
    "lion": "lion8bit",
    "lion32bit": "lion8bit",
    "ademamix": "ademamix8bit",
    "adagrad": "adagrad8bit",
    "rmsprop": "rmsprop8bit",
}
_SHARED = ("lr", "betas", "eps", "weight_decay")
"""Arguments that both optimizers take, under the same names."""


def _8bit(plan: Plan, trace: Trace) -> list[Remedy]:
    name = registry.of(plan).row.name
    if name not in _IN_8BIT or plan.target == "cpu":
        return []
    changes = _optimizer(plan, _IN_8BIT[name])
    title = f"8-bit optimizer states (--optim {_IN_8BIT[name]})"
    return [_remedy("8-bit states", title, changes, 5, "states in 8 bit", _8BIT)]


def _optimizer(plan: Plan, name: str) -> tuple[Change, ...]:
    args = tuple(pair for pair in plan.optim_args if pair[0] in _SHARED)
    return (("optim", name), ("optim_args", args))


def _pure(plan: Plan, trace: Trace) -> list[Remedy]:
    if plan.precision in ("bf16", "fp16"):
        return []
    half = "bf16"
    slow = ", which this GPU computes slowly" if _half(plan) != half else ""
    title = f"everything in {half} (--precision {half})"
    cost = f"weights in {half}{slow}: small updates are lost"
    found = [_remedy("bf16", title, (("precision", half),), 6, cost, _PURE)]
    if registry.of(plan).row.name in ("adamw", "adamw_torch_fused"):
        changes = (("precision", half), *_optimizer(plan, "memcalc.adamw_bf16"))
        title = f"{half} with a correction term (--precision {half} --optim memcalc.adamw_bf16)"
        cost = f"weights in {half}{slow}; a third state carries what rounding loses"
        source = "docs/optimizers.md and evidence/finetune.json of memcalc"
        found.append(_remedy("bf16, corrected", title, changes, 6, cost, source))
    return found


def _lora(plan: Plan, trace: Trace) -> list[Remedy]:
    if plan.lora is not None or plan.inputs or importlib.util.find_spec("peft") is None:
        return []
    spec = "r=16,target=all-linear"
    cost = "adapters train, the model itself does not"
    return [_remedy("LoRA", f"LoRA (--lora {spec})", (("lora", spec),), 7, cost, _LORA)]


_ROWS: tuple[Callable[[Plan, Trace], list[Remedy]], ...] = (
    *(_fused, _set_to_none, _attention, _expandable, _accumulate, _amp, _chunked),
    *(_in_backward, _checkpointing, _8bit, _pure, _lora),
)
