"""A plan as settings of the program that will train it, to copy.

What that program has no word for is a comment, so that nothing of the plan is dropped unsaid.
"""

from collections.abc import Callable, Iterator
from typing import Any

from memcalc import dialects, registry
from memcalc.catalog import models
from memcalc.catalog.quantized import BITSANDBYTES, TORCHAO, settings_in
from memcalc.dialects import accelerate, axolotl, edit, llamafactory, swift, trainer, trl
from memcalc.errors import UsageError, unknown
from memcalc.records.names import ZERO_STAGES
from memcalc.records.plan import Plan
from memcalc.records.values import adapter

Lines = list[str]
_HALVES = {"bf16": "bfloat16", "bf16+amp": "bfloat16", "fp16": "float16"}


def lora_config(adapters: str) -> str:
    """Return the class of peft for adapters, as Python."""
    said = adapter(adapters)
    named = f'"{said.target}"' if isinstance(said.target, str) else repr(list(said.target))
    return f"LoraConfig(r={said.r}, lora_alpha={said.alpha:g}, target_modules={named})"


def bitsandbytes_arguments(plan: Plan) -> Lines:
    """Return the arguments of ``BitsAndBytesConfig`` for the plan's scheme, as Python."""
    told = [f"{name}={value!r}" for name, value in BITSANDBYTES[plan.scheme or ""].items()]
    if "load_in_4bit=True" in told:
        default = _HALVES.get(plan.precision.removeprefix("amp-"), "float32")
        told.append(f"bnb_4bit_compute_dtype=torch.{plan.bnb_4bit_compute_dtype or default}")
    return [one.replace("'", '"') for one in told]


def _quantization(plan: Plan) -> Lines:
    """Return Python that makes transformers' settings of the plan's scheme."""
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
    return [
        "import torch",
        "from transformers import BitsAndBytesConfig",
        "",
        "quantization_config = BitsAndBytesConfig(",
        *(f"    {one}," for one in bitsandbytes_arguments(plan)),
        ")",
    ]


def _already(plan: Plan) -> bool:
    """Tell whether the checkpoint is quantized, and says itself how."""
    return settings_in(models.find(plan.model).config) is not None


def _loading(plan: Plan) -> Iterator[str]:
    """Return comments on how the model is loaded."""
    said = [f"dtype=torch.{_HALVES[plan.precision]}"] if plan.precision in _HALVES else []
    if plan.scheme in TORCHAO or plan.scheme in BITSANDBYTES:
        own = 'int(os.environ["LOCAL_RANK"])' if plan.devices > 1 else "0"
        said += [] if _already(plan) else ["quantization_config=quantization_config"]
        said.append(f'device_map={{"": {own}}}')
    if said:
        yield f"# load the model with {', '.join(said)}"
    if plan.scheme in BITSANDBYTES and plan.kbit_prepare:
        again = plan.checkpointing
        told = f", {_reentrant(plan)!r}" if _reentrant(plan) else ""
        yield f"# then peft.prepare_model_for_kbit_training(model, {again}{told}), then adapters"
    if not plan.autocast_adapter_dtype:
        yield "# peft.get_peft_model(model, peft_config, autocast_adapter_dtype=False)"


def _reentrant(plan: Plan) -> dict[str, bool]:
    """Return the arguments of ``torch.utils.checkpoint`` that the plan names."""
    return {} if plan.use_reentrant is None else {"use_reentrant": plan.use_reentrant}


def _elsewhere(plan: Plan, *, has_optimizer: bool) -> Iterator[str]:
    """Return comments on what a program has no word for."""
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


def _other_layout(plan: Plan, known: tuple[str, ...]) -> Lines:
    """Return a comment on a layout that a program has no word for."""
    if accelerate.layout_of(plan) in ("", *known):
        return []
    told = "".join(f", {name}={value}" for name, value in plan.parallel_args)
    return [f"# layout over {plan.devices} GPUs: {plan.parallel}{told}"]


def _trainer(plan: Plan) -> Lines:
    """Return ``transformers.TrainingArguments`` and the code beside them, for a script."""
    arguments = {"output_dir": "out", **trainer.write(plan)}
    shown = [f"    {name}={value!r},".replace("'", '"') for name, value in arguments.items()]
    said = [
        *([f"# torchrun --nproc-per-node {plan.devices} train.py"] if plan.devices > 1 else []),
        "from transformers import TrainingArguments",
        "",
        "args = TrainingArguments(",
        *shown,
        ")",
    ]
    if quantized := _quantization(plan):
        said += ["", *quantized]
    if plan.lora is not None:
        said += ["", "from peft import LoraConfig", "", f"peft_config = {lora_config(plan.lora)}"]
    said += _loading(plan)
    said += _other_layout(plan, ("ddp", "fsdp1", "fsdp2"))
    return [*said, *_elsewhere(plan, has_optimizer="optim" in arguments)]


def _accelerate(plan: Plan) -> Lines:
    """Return the YAML of ``accelerate config``; what is of the script is a comment."""
    again = _reentrant(plan) or ""
    return [
        "# accelerate launch --config_file this.yaml train.py",
        *_yaml(accelerate.write(plan)),
        f"# Accelerator(gradient_accumulation_steps={plan.grad_accum})",
        f"# DataLoader(..., batch_size={plan.batch})",
        *([f"# model.gradient_checkpointing_enable({again})"] if plan.checkpointing else []),
        *(["# transformers.integrations.liger.apply_liger_kernel(model, None)"] * plan.liger),
        *([f"# model = torch.compile(model, mode={plan.compile!r})"] if plan.compile else []),
        *(f"# {line}" for line in _quantization(plan) if line),
        *([f"# {lora_config(plan.lora)}"] if plan.lora is not None else []),
        *_loading(plan),
        *_other_layout(plan, ("ddp", "fsdp1", "fsdp2", *ZERO_STAGES)),
        *_elsewhere(plan, has_optimizer=False),
    ]


def _yaml(settings: dict[str, Any]) -> Lines:
    return edit.dump(settings).splitlines()


def _recipe(room: Any, command: str, layouts: tuple[str, ...]) -> Callable[[Plan], Lines]:
    """Return what writes a recipe of a framework, with comments on what it has no word for."""

    def written(plan: Plan) -> Lines:
        settings = room.write(plan)
        named = any(key in settings for key in ("optim", "optimizer"))
        schemes = (None, "nf4", "nf4-dq", "int8") if room is axolotl else (None, *BITSANDBYTES)
        return [
            *_yaml(settings),
            *([f"# {command}, over {plan.devices} GPUs"] if plan.devices > 1 else []),
            *([] if plan.scheme in schemes else [f"# quantized: {plan.scheme}"]),
            *_other_layout(plan, ("ddp", *layouts)),
            *_elsewhere(plan, has_optimizer=named),
        ]

    return written


PROGRAMS: dict[str, Callable[[Plan], Lines]] = {
    "trainer": _trainer,
    "accelerate": _accelerate,
    "axolotl": _recipe(axolotl, "axolotl train this.yaml", ("fsdp2", *ZERO_STAGES)),
    "llamafactory": _recipe(llamafactory, "llamafactory-cli train this.yaml", (*ZERO_STAGES,)),
    "trl": _recipe(trl, "trl sft --config this.yaml", ("fsdp1", "fsdp2")),
    "swift": _recipe(swift, "swift sft --config this.yaml", (*ZERO_STAGES,)),
}
_NAMES = {"trainer": trainer.NAME, "accelerate": accelerate.NAME, "axolotl": axolotl.NAME,
          "llamafactory": llamafactory.NAME, "trl": trl.NAME, "swift": swift.NAME}  # fmt: skip


def is_of(program: str, file: str) -> bool:
    """Tell whether a recipe is in the format of a program."""
    path = dialects.find(file)
    found = dialects.recognise(dialects.load(path)) if path is not None else None
    return found is not None and _NAMES.get(program) == found.NAME


def snippet(plan: Plan, program: str) -> str:
    """Write the plan as the settings of a program, which is one of ``PROGRAMS``.

    Raises:
        UsageError: there is no such program.
    """
    if program not in PROGRAMS:
        raise unknown("program", program, list(PROGRAMS), hint="see memcalc suggest --help.")
    return "\n".join(PROGRAMS[program](plan)) + "\n"
