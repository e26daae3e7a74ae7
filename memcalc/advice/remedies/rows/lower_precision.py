"""Remedies that lower the precision of products, weights or states, or train adapters instead."""

from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from memcalc import registry
from memcalc.advice.remedies import rows
from memcalc.advice.remedies.records import Remedy
from memcalc.advice.remedies.rows import row
from memcalc.catalog import gpus, models
from memcalc.catalog.gpus import architectures
from memcalc.estimation.validate import checkpoint_refusal, quant_refusal
from memcalc.records.model import Parameter
from memcalc.records.plan import Plan
from memcalc.records.values import USUAL_LORA, adapter
from memcalc.registry import Choice

_HALF = "transformers documentation, Optimizing inference: weights in half precision"
_PURE = "Zamirai et al. 2020, arXiv:2010.06192: nearest rounding loses small updates"
_KBIT = "peft 0.17, prepare_model_for_kbit_training: casts what is not quantized to fp32"
_SWITCHES = ("foreach", "fused", "capturable", "differentiable")
"""Arguments of torch.optim that choose how a step is run, not what it computes."""
_ONE = Parameter(name="weight", shape=(4096, 4096), dtype="float32")
"""Large enough to have whatever state an optimizer keeps."""


def half_of(plan: Plan) -> str:
    """The half precision the GPU computes in."""
    if plan.gpu is not None and not architectures()[gpus.find(plan.gpu).capability].bf16:
        return "fp16"
    return "bf16"


def of_training(plan: Plan) -> Iterator[Remedy]:
    """Half precision in products and weights, 8 bit in states, no fp32 beside a quantized base."""
    half = half_of(plan)
    if plan.precision in ("fp32", "tf32"):
        title = f"autocast to {half} (--precision amp-{half})"
        cost = f"matrix products in {half}; updates stay fp32"
        yield row(2, "amp", title, cost, rows.AMP, precision=f"amp-{half}")
    choice = registry.of(plan)
    if choice.args.get("optim_bits") != 8:
        twin = choice.row.twin_8bit
        title = f"8-bit optimizer states{f' (--optim {twin})' if twin else ''}"
        yield row(
            *(5, "8-bit states", title, "states in 8 bit", rows.EIGHT_BIT),
            unfit=_not_in_8_bit(plan, choice),
            **_optimizer(plan, twin),
        )
    if not plan.half_weights:
        slow = "" if half == "bf16" else ", which this GPU computes slowly"
        cost, title = f"weights in bf16{slow}", "everything in bf16 (--precision bf16)"
        yield row(6, "bf16", title, f"{cost}: small updates are lost", _PURE, precision="bf16")
        if choice.row.implementation == "torch.optim.AdamW":
            name = "memcalc.adamw_bf16"
            title = f"bf16 with a correction term (--precision bf16 --optim {name})"
            cost = f"{cost}; a third state carries what rounding loses"
            yield row(
                *(6, "bf16, corrected", title, cost, rows.CORRECTED),
                unfit=_lost(plan, name),
                precision="bf16",
                **_optimizer(plan, name),
            )
    if plan.scheme is not None and plan.kbit_prepare:
        title = "norms, embeddings and head stay in 16 bit (--no-kbit-prepare)"
        cost = "norms and logits are no longer in fp32"
        yield row(2, "no kbit prepare", title, cost, _KBIT, kbit_prepare=False)


def of_inference(plan: Plan) -> Iterator[Remedy]:
    """Where nothing trains no update is lost."""
    half = half_of(plan)
    if not plan.half_weights:
        title, cost = f"everything in {half} (--precision {half})", "weights, results and cache in"
        yield row(1, half, title, f"{cost} {half}", _HALF, precision=half)
    if plan.scheme is None and plan.engine is None:
        changes = _in_4_bit(plan)
        title = f"weights in 4 bit ({_typed(changes)})"
        cost = "4-bit weights, dequantized for every product"
        yield row(8, "4 bit", title, cost, rows.FOUR_BIT, unfit=_not_in_4_bit(plan), **changes)


def of_adapters(plan: Plan) -> Iterator[Remedy]:
    """Adapters train instead of the model, smaller ones, or around weights in 4 bit."""
    if plan.adapters is None:
        title = f"LoRA (--lora {USUAL_LORA})"
        yield row(7, "LoRA", title, "only adapters train", rows.LORA, lora=USUAL_LORA)
    elif (rank := adapter(plan.adapters).r) > 1:
        parts = [part.strip() for part in plan.adapters.split(",")]
        less = ",".join([f"r={rank // 2}", *(part for part in parts if not part.startswith("r="))])
        title = f"half the rank (--lora {less})"
        yield row(
            7, "lower rank", title, "adapters of half the size learn less", rows.LORA, lora=less
        )
    if plan.scheme is None:
        changes = _in_4_bit(plan, lora=plan.adapters or USUAL_LORA)
        cost = "only adapters train; 4-bit weights are dequantized for every product"
        title = f"QLoRA ({_typed(changes)})"
        yield row(8, "QLoRA", title, cost, rows.QLORA, unfit=_not_in_4_bit(plan), **changes)


def _in_4_bit(plan: Plan, **others: str) -> dict[str, str]:
    """The change to weights in 4 bit, which compute in half precision, and others beside it."""
    wide = plan.precision in ("fp32", "tf32")
    return {"quant": "nf4-dq", **others, **({"precision": half_of(plan)} if wide else {})}


def _not_in_4_bit(plan: Plan) -> str | None:
    """Why a model is not loaded in 4 bit; ``None``: it can be."""
    asked, source = replace(plan, quant="nf4-dq"), models.find(plan.model)
    refused = checkpoint_refusal(asked, source) is not None
    quantized_already = "the checkpoint is quantized already, in another way" if refused else None
    return quant_refusal(asked, source) or quantized_already


def _typed(changes: dict[str, str]) -> str:
    """Changes as options."""
    return " ".join(f"--{name} {value}" for name, value in changes.items())


def _not_in_8_bit(plan: Plan, choice: Choice) -> str | None:
    """Why the optimizer's states are not kept in 8 bit; ``None``: they can be."""
    twin = choice.row.twin_8bit
    if choice.row.closed_form and not choice.state([_ONE]).tensors:
        return f"{choice.row.name} keeps no state with these settings"
    if twin is None:
        return f"no {choice.row.name} with 8-bit states is known"
    cpu = "bitsandbytes' 8-bit states are for GPUs" if plan.target == "cpu" else None
    return _lost(plan, twin) or cpu


def _optimizer(plan: Plan, name: str | None) -> dict[str, Any]:
    """The change to another optimizer, with the arguments that it takes too."""
    if name is None:
        return {}
    takes = _takes(name)
    kept = tuple(pair for pair in plan.optim_args if pair[0] in takes)
    return {"optim": name, "optim_args": kept}


def _lost(plan: Plan, name: str) -> str | None:
    """What of the plan's arguments another optimizer cannot be told; ``None``: nothing of note."""
    takes = (*_takes(name), *_SWITCHES)
    lost = [key for key, value in plan.optim_args if value and key not in takes]
    return f"{name} has no {', '.join(lost)}" if lost else None


def _takes(name: str) -> tuple[str, ...]:
    row = registry.find(name, {}).row
    return (*row.defaults, *row.takes)
