"""A plan in the words of the program that will train it, to be copied.

What that program has no word for is a comment, so that nothing of the plan is dropped unsaid.
"""

from __future__ import annotations

from collections.abc import Callable

from memcalc import registry
from memcalc.errors import UsageError, unknown
from memcalc.records.plan import Plan
from memcalc.records.texts import adapter

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


def snippet(plan: Plan, program: str) -> str:
    """The plan as the settings of a program.

    Args:
        plan: what to train.
        program: one of ``PROGRAMS``.

    Raises:
        UsageError: there is no such program.
    """
    if program not in PROGRAMS:
        raise unknown("program", program, list(PROGRAMS), hint="see memcalc suggest --help.")
    return "\n".join(PROGRAMS[program](plan)) + "\n"


def _trainer(plan: Plan) -> Lines:
    arguments = [
        f"per_device_train_batch_size={plan.batch}",
        f"gradient_accumulation_steps={plan.grad_accum}",
        *_precision(plan),
        *(["gradient_checkpointing=True"] if plan.checkpointing else []),
        *([f'optim="{name}"'] if (name := _optimizer(plan)) else []),
    ]
    said = [
        "from transformers import TrainingArguments",
        "",
        "args = TrainingArguments(",
        *(f"    {line}," for line in ('output_dir="out"', *arguments)),
        ")",
    ]
    if plan.lora is not None:
        said += ["", "from peft import LoraConfig", "", f"peft_config = {_lora(plan)}"]
    return [*said, *_comments(plan, has_optimizer=bool(_optimizer(plan)))]


def _accelerate(plan: Plan) -> Lines:
    mixed = {"amp-bf16": "bf16", "amp-fp16": "fp16"}.get(plan.precision, "no")
    return [
        "# accelerate launch --config_file this.yaml train.py",
        "compute_environment: LOCAL_MACHINE",
        "distributed_type: 'NO'",
        f"mixed_precision: '{mixed}'",
        "num_machines: 1",
        "num_processes: 1",
        "use_cpu: false",
        f"# Accelerator(gradient_accumulation_steps={plan.grad_accum})",
        f"# DataLoader(..., batch_size={plan.batch})",
        *(["# model.gradient_checkpointing_enable()"] if plan.checkpointing else []),
        *([f"# {_lora(plan)}"] if plan.lora is not None else []),
        *_comments(plan, has_optimizer=False),
    ]


def _axolotl(plan: Plan) -> Lines:
    flags = {"amp-bf16": ["bf16: true"], "amp-fp16": ["fp16: true"], "bf16": ["bf16: full"]}
    adapted: Lines = []
    if plan.lora is not None:
        lora = adapter(plan.lora)
        adapted = ["adapter: lora", f"lora_r: {lora.r}", f"lora_alpha: {lora.alpha}"]
        adapted.append("lora_target_linear: true")
    return [
        f"base_model: {plan.model}",
        *([f"sequence_len: {plan.seq}"] if plan.seq else []),
        f"micro_batch_size: {plan.batch}",
        f"gradient_accumulation_steps: {plan.grad_accum}",
        *flags.get(plan.precision, []),
        *([f"optimizer: {name}"] if (name := _optimizer(plan)) else []),
        *(["gradient_checkpointing: true"] if plan.checkpointing else []),
        *adapted,
        *_comments(plan, has_optimizer=bool(_optimizer(plan))),
    ]


PROGRAMS: dict[str, Callable[[Plan], Lines]] = {
    "trainer": _trainer,
    "accelerate": _accelerate,
    "axolotl": _axolotl,
}


def _precision(plan: Plan) -> Lines:
    return {"amp-bf16": ["bf16=True"], "amp-fp16": ["fp16=True"]}.get(plan.precision, [])


def _optimizer(plan: Plan) -> str | None:
    """The Trainer's name for the plan's optimizer; ``None``: it has none."""
    if plan.optim == "adamw":
        fused = dict(plan.optim_args).get("fused")
        return "adamw_torch_fused" if fused else "adamw_torch"
    return _OPTIMIZERS.get(registry.of(plan).row.name)


def _lora(plan: Plan) -> str:
    assert plan.lora is not None
    lora = adapter(plan.lora)
    named = f'"{lora.target}"' if isinstance(lora.target, str) else repr(list(lora.target))
    return f"LoraConfig(r={lora.r}, lora_alpha={lora.alpha}, target_modules={named})"


def _comments(plan: Plan, *, has_optimizer: bool) -> Lines:
    """What is to be set elsewhere."""
    said = []
    if plan.precision in ("bf16", "fp16"):
        kind = {"bf16": "bfloat16", "fp16": "float16"}[plan.precision]
        said.append(f"# load the model with dtype=torch.{kind}")
    if not has_optimizer:
        try:
            row = registry.find(plan.optim, {}).row
            said.append(f"# optimizer: {row.implementation}")
        except UsageError:
            said.append(f"# optimizer: {plan.optim}")
    if plan.alloc_conf:
        said.append(f"# PYTORCH_ALLOC_CONF={plan.alloc_conf}")
    if plan.loss_chunks > 1:
        said.append(f"# the loss in {plan.loss_chunks} pieces")
    return said
