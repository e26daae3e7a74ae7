"""Text shared by snippets: Python classes, and comments on what is set elsewhere."""

from __future__ import annotations

from collections.abc import Iterator

from memcalc import registry
from memcalc.catalog import models
from memcalc.catalog.quantised import BITSANDBYTES, TORCHAO, settings_in
from memcalc.errors import UsageError
from memcalc.records.compact_options import adapter
from memcalc.records.plan import Plan
from memcalc.workload import layouts

Lines = list[str]

_OPTIMIZERS = {
    "adamw8bit": "adamw_8bit",
    "pagedadamw8bit": "paged_adamw_8bit",
    "pagedadamw": "paged_adamw_32bit",
    "transformers.adafactor": "adafactor",
    "sgd": "sgd",
    "lion8bit": "lion_8bit",
    "lion": "lion_32bit",
    "rmsprop": "rmsprop",
}
"""Rows of the registry by their names in transformers' ``OptimizerNames`` (training_args.py, 5.23);
its adafactor is not torch's."""
_HALVES = {"bf16": "bfloat16", "bf16+amp": "bfloat16", "fp16": "float16"}


def optimizer(plan: Plan) -> str | None:
    """The Trainer's name for the plan's optimizer; ``None``: it has none."""
    if plan.optim == "adamw":
        fused = dict(plan.optim_args).get("fused")
        return "adamw_torch_fused" if fused else "adamw_torch"
    return _OPTIMIZERS.get(registry.of(plan).row.name)


def lora(plan: Plan) -> str:
    """The class of peft for the plan's adapters."""
    assert plan.lora is not None
    said = adapter(plan.lora)
    named = f'"{said.target}"' if isinstance(said.target, str) else repr(list(said.target))
    return f"LoraConfig(r={said.r}, lora_alpha={said.alpha:g}, target_modules={named})"


def quantisation(plan: Plan) -> Lines:
    """Python that makes transformers' settings of the plan's scheme; nothing without one."""
    if plan.scheme in TORCHAO:
        kind = TORCHAO[plan.scheme]
        return [
            f"from torchao.quantization import {kind}",
            "from transformers import TorchAoConfig",
            "",
            f"quantization_config = TorchAoConfig({kind}())",
        ]
    if plan.scheme not in BITSANDBYTES or _already(plan):
        return []
    told = [f"{name}={value!r}" for name, value in BITSANDBYTES[plan.scheme].items()]
    if "load_in_4bit=True" in told:
        told.append(f"bnb_4bit_compute_dtype=torch.{computed_in(plan)}")
    return [
        "import torch",
        "from transformers import BitsAndBytesConfig",
        "",
        "quantization_config = BitsAndBytesConfig(",
        *(f"    {one.replace(chr(39), chr(34))}," for one in told),
        ")",
    ]


def _already(plan: Plan) -> bool:
    """The checkpoint is quantized, and says itself how."""
    return settings_in(models.find(plan.model).config) is not None


def computed_in(plan: Plan) -> str:
    """Name of the dtype that products are in."""
    return _HALVES.get(plan.precision.removeprefix("amp-"), "float32")


def half(plan: Plan) -> str:
    """The half precision of a plan that computes in one."""
    return "fp16" if "fp16" in plan.precision else "bf16"


def loading(plan: Plan) -> Iterator[str]:
    """Comments on how the model is loaded."""
    said = [f"dtype=torch.{_HALVES[plan.precision]}"] if plan.precision in _HALVES else []
    if plan.scheme in TORCHAO or plan.scheme in BITSANDBYTES:
        own = 'int(os.environ["LOCAL_RANK"])' if plan.devices > 1 else "0"
        said += [] if _already(plan) else ["quantization_config=quantization_config"]
        said.append(f'device_map={{"": {own}}}')
    if said:
        yield f"# load the model with {', '.join(said)}"
    if plan.scheme in BITSANDBYTES and plan.kbit_prepare:
        again = plan.checkpointing
        yield f"# then peft.prepare_model_for_kbit_training(model, {again}), and adapters after it"


def elsewhere(plan: Plan, *, has_optimizer: bool) -> Iterator[str]:
    """Comments on what a program has no word for."""
    if not has_optimizer:
        try:
            yield f"# optimizer: {registry.find(plan.optim, {}).row.implementation}"
        except UsageError:
            yield f"# optimizer: {plan.optim}"
    if plan.alloc_conf:
        yield f"# PYTORCH_ALLOC_CONF={plan.alloc_conf}"
    if plan.loss_chunks > 1:
        yield f"# the loss in {plan.loss_chunks} pieces"
    if plan.optim_in_backward:
        yield "# each parameter is updated in backward, as soon as its gradient is there"
    if plan.max_grad_norm is not None:
        yield f"# gradients are clipped to a norm of {plan.max_grad_norm}"
    for pattern in plan.freeze:
        yield f"# frozen: parameters named {pattern}"


def layout(plan: Plan) -> str:
    """Name of the plan's layout over GPUs; empty for one."""
    return layouts.spread(plan).layout if plan.devices > 1 else ""


def arguments(plan: Plan) -> dict[str, object]:
    """What the layout's wrapper is told beside its defaults."""
    return dict(plan.parallel_args)


def other_layout(plan: Plan) -> str:
    """A comment on a layout that a program has no word for."""
    told = "".join(f", {name}={value}" for name, value in plan.parallel_args)
    return f"# layout over {plan.devices} GPUs: {plan.parallel}{told}"
