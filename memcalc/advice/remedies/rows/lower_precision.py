"""Remedies that lower the precision of products, weights or optimizer states."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from memcalc import registry
from memcalc.advice.remedies import rows
from memcalc.advice.remedies.records import Change, Remedy
from memcalc.catalog import gpus, models
from memcalc.catalog.capabilities import ARCHITECTURES
from memcalc.estimation.validate import checkpoint_refusal, quant_refusal
from memcalc.records.model import Parameter
from memcalc.records.plan import Plan
from memcalc.workload.tasks import Task

_HALF = "transformers documentation, Optimizing inference: weights in half precision"
_PURE = "Zamirai et al. 2020, arXiv:2010.06192: nearest rounding loses small updates"
_KBIT = "peft 0.17, prepare_model_for_kbit_training: casts what is not quantized to fp32"
_SWITCHES = ("foreach", "fused", "capturable", "differentiable")
"""Arguments of torch.optim that choose how a step is run, not what it computes."""
_ONE = Parameter(name="weight", shape=(4096, 4096), dtype="float32")
"""Large enough to have whatever state an optimizer keeps."""


def half_of(plan: Plan) -> str:
    """The half precision the GPU computes in."""
    if plan.gpu is not None and not ARCHITECTURES[gpus.find(plan.gpu).capability].bf16:
        return "fp16"
    return "bf16"


def autocast(plan: Plan, task: Task) -> Iterator[Remedy]:
    """Products in half precision."""
    if plan.precision in ("fp32", "tf32"):
        half = half_of(plan)
        yield Remedy(
            key="amp",
            title=f"autocast to {half} (--precision amp-{half})",
            changes=(("precision", f"amp-{half}"),),
            rank=2,
            cost=f"matrix products in {half}; updates stay fp32",
            source=rows.AMP,
        )


def eight_bit_states(plan: Plan, task: Task) -> Iterator[Remedy]:
    """Optimizer states in 8 bit."""
    choice = registry.of(plan)
    if choice.args.get("optim_bits") == 8:
        return
    twin = choice.row.twin_8bit
    reason = f"no {choice.row.name} with 8-bit states is known" if twin is None else None
    if choice.row.closed_form and not choice.state([_ONE]).tensors:
        reason = f"{choice.row.name} keeps no state with these settings"
    lost = _lost(plan, twin) if twin is not None else None
    cpu = "bitsandbytes' 8-bit states are for GPUs" if plan.target == "cpu" else None
    yield Remedy(
        key="8-bit states",
        title=f"8-bit optimizer states{f' (--optim {twin})' if twin else ''}",
        changes=_optimizer(plan, twin) if twin is not None else (),
        rank=5,
        cost="states in 8 bit",
        source=rows.EIGHT_BIT,
        unfit=reason or lost or cpu,
    )


def all_in_bf16(plan: Plan, task: Task) -> Iterator[Remedy]:
    """Weights and gradients in bf16."""
    if plan.half_weights:
        return
    slow = ", which this GPU computes slowly" if half_of(plan) != "bf16" else ""
    yield Remedy(
        key="bf16",
        title="everything in bf16 (--precision bf16)",
        changes=(("precision", "bf16"),),
        rank=6,
        cost=f"weights in bf16{slow}: small updates are lost",
        source=_PURE,
    )
    if registry.of(plan).row.implementation != "torch.optim.AdamW":
        return
    name = "memcalc.adamw_bf16"
    yield Remedy(
        key="bf16, corrected",
        title=f"bf16 with a correction term (--precision bf16 --optim {name})",
        changes=(("precision", "bf16"), *_optimizer(plan, name)),
        rank=6,
        cost=f"weights in bf16{slow}; a third state carries what rounding loses",
        source=rows.CORRECTED,
        unfit=_lost(plan, name),
    )


def all_in_half(plan: Plan, task: Task) -> Iterator[Remedy]:
    """Where nothing trains no update is lost."""
    if plan.half_weights:
        return
    half = half_of(plan)
    yield Remedy(
        key=half,
        title=f"everything in {half} (--precision {half})",
        changes=(("precision", half),),
        rank=1,
        cost=f"weights, results and cache in {half}",
        source=_HALF,
    )


def unprepared(plan: Plan, task: Task) -> Iterator[Remedy]:
    """What is not quantized stays as it was loaded."""
    if plan.scheme is None or plan.infers or not plan.kbit_prepare:
        return
    yield Remedy(
        key="no kbit prepare",
        title="norms, embeddings and head stay in 16 bit (--no-kbit-prepare)",
        changes=(("kbit_prepare", False),),
        rank=2,
        cost="norms and logits are no longer in fp32",
        source=_KBIT,
    )


def weights_in_4_bit(plan: Plan, task: Task) -> Iterator[Remedy]:
    """Weights that nothing trains."""
    if plan.scheme is not None or plan.engine is not None:
        return
    changes = in_4_bit(plan)
    yield Remedy(
        key="4 bit",
        title=f"weights in 4 bit ({typed(changes)})",
        changes=changes,
        rank=8,
        cost="4-bit weights, dequantized for every product",
        source=rows.FOUR_BIT,
        unfit=not_in_4_bit(plan),
    )


def in_4_bit(plan: Plan, *others: Change) -> tuple[Change, ...]:
    """The change to weights in 4 bit, which compute in half precision, and others beside it."""
    changes: tuple[Change, ...] = (("quant", "nf4-dq"), *others)
    if plan.precision in ("fp32", "tf32"):
        changes = (*changes, ("precision", half_of(plan)))
    return changes


def not_in_4_bit(plan: Plan) -> str | None:
    """Why a model is not loaded in 4 bit; ``None``: it can be."""
    asked, source = replace(plan, quant="nf4-dq"), models.find(plan.model)
    refused = checkpoint_refusal(asked, source) is not None
    quantised_already = "the checkpoint is quantized already, in another way" if refused else None
    return quant_refusal(asked, source) or quantised_already


def typed(changes: tuple[Change, ...]) -> str:
    """Changes as options."""
    return " ".join(f"--{name} {value}" for name, value in changes)


def _optimizer(plan: Plan, name: str) -> tuple[Change, ...]:
    """The change to another optimizer, with the arguments that it takes too."""
    takes = _takes(name)
    kept = tuple(pair for pair in plan.optim_args if pair[0] in takes)
    return ("optim", name), ("optim_args", kept)


def _lost(plan: Plan, name: str) -> str | None:
    """What of the plan's arguments another optimizer cannot be told; ``None``: nothing of note."""
    takes = (*_takes(name), *_SWITCHES)
    lost = [key for key, value in plan.optim_args if value and key not in takes]
    return f"{name} has no {', '.join(lost)}" if lost else None


def _takes(name: str) -> tuple[str, ...]:
    row = registry.find(name, {}).row
    return (*row.defaults, *row.takes)
