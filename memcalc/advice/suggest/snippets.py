"""A plan as settings of the program that will train it, to copy.

What that program has no word for is a comment, so that nothing of the plan is dropped unsaid.
"""

import json
from collections.abc import Callable, Iterator

from memcalc import registry
from memcalc.catalog import models
from memcalc.catalog.quantised import BITSANDBYTES, TORCHAO, settings_in
from memcalc.errors import UsageError, unknown
from memcalc.records.names import ZERO_STAGES
from memcalc.records.plan import Plan
from memcalc.records.values import adapter
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


def _optimizer(plan: Plan) -> str | None:
    """The Trainer's name for the plan's optimizer; ``None``: it has none."""
    if plan.optim == "adamw":
        return "adamw_torch_fused" if dict(plan.optim_args).get("fused") else "adamw_torch"
    return _OPTIMIZERS.get(registry.of(plan).row.name)


def _lora(plan: Plan) -> str:
    """The class of peft for the plan's adapters."""
    assert plan.lora is not None
    said = adapter(plan.lora)
    named = f'"{said.target}"' if isinstance(said.target, str) else repr(list(said.target))
    return f"LoraConfig(r={said.r}, lora_alpha={said.alpha:g}, target_modules={named})"


def _quantisation(plan: Plan) -> Lines:
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
        computed = _HALVES.get(plan.precision.removeprefix("amp-"), "float32")
        told.append(f"bnb_4bit_compute_dtype=torch.{computed}")
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


def _half(plan: Plan) -> str:
    """The half precision of a plan that computes in one."""
    return "fp16" if "fp16" in plan.precision else "bf16"


def _loading(plan: Plan) -> Iterator[str]:
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
        told = f", {_reentrant(plan)!r}" if _reentrant(plan) else ""
        yield f"# then peft.prepare_model_for_kbit_training(model, {again}{told}), then adapters"
    if not plan.autocast_adapter_dtype:
        yield "# peft.get_peft_model(model, peft_config, autocast_adapter_dtype=False)"


def _reentrant(plan: Plan) -> dict[str, bool]:
    """Return the arguments of ``torch.utils.checkpoint`` that the plan names."""
    return {} if plan.use_reentrant is None else {"use_reentrant": plan.use_reentrant}


def _elsewhere(plan: Plan, *, has_optimizer: bool) -> Iterator[str]:
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


def _layout(plan: Plan) -> str:
    """Name of the plan's layout over GPUs; empty for one."""
    return layouts.spread(plan).layout if plan.devices > 1 else ""


def _other_layout(plan: Plan) -> str:
    """A comment on a layout that a program has no word for."""
    told = "".join(f", {name}={value}" for name, value in plan.parallel_args)
    return f"# layout over {plan.devices} GPUs: {plan.parallel}{told}"


def _trainer(plan: Plan) -> Lines:
    """``transformers.TrainingArguments`` and the code beside them, to be copied into a script."""
    named = _optimizer(plan)
    arguments = [
        f"per_device_train_batch_size={plan.batch}",
        f"gradient_accumulation_steps={plan.grad_accum}",
        *([f"{_half(plan)}=True"] if "amp" in plan.precision else []),
        *(["gradient_checkpointing=True"] if plan.checkpointing else []),
        *([f"gradient_checkpointing_kwargs={told!r}"] if (told := _reentrant(plan)) else []),
        *(["use_liger_kernel=True"] if plan.liger else []),
        *([f'torch_compile=True, torch_compile_mode="{plan.compile}"'] if plan.compile else []),
        *([f'optim="{named}"'] if named else []),
        *_trainer_sharded(plan),
    ]
    said = [
        *([f"# torchrun --nproc-per-node {plan.devices} train.py"] if plan.devices > 1 else []),
        "from transformers import TrainingArguments",
        "",
        "args = TrainingArguments(",
        *(f"    {line}," for line in ('output_dir="out"', *arguments)),
        ")",
    ]
    if quantised := _quantisation(plan):
        said += ["", *quantised]
    if plan.lora is not None:
        said += ["", "from peft import LoraConfig", "", f"peft_config = {_lora(plan)}"]
    said += _loading(plan)
    if _layout(plan) not in ("", "ddp", "fsdp1", "fsdp2"):
        said.append(_other_layout(plan))
    return [*said, *_elsewhere(plan, has_optimizer=bool(named))]


def _trainer_sharded(plan: Plan) -> Lines:
    layout = _layout(plan)
    if layout not in ("fsdp1", "fsdp2"):
        return []
    told = {"version": int(layout[-1]), **dict(plan.parallel_args)}
    return ["fsdp=True", f"fsdp_config={told!r}".replace("'", '"')]


_TYPES = {"": "'NO'", "ddp": "MULTI_GPU", "fsdp1": "FSDP", "fsdp2": "FSDP"}


def _accelerate(plan: Plan) -> Lines:
    """The YAML of ``accelerate launch --config_file``; what is of the script is a comment."""
    mixed = _half(plan) if "amp" in plan.precision else "no"
    layout, again = _layout(plan), _reentrant(plan) or ""
    kind = "DEEPSPEED" if layout in ZERO_STAGES else _TYPES.get(layout, "MULTI_GPU")
    return [
        "# accelerate launch --config_file this.yaml train.py",
        "compute_environment: LOCAL_MACHINE",
        f"distributed_type: {kind}",
        *_accelerate_sharded(plan, layout),
        f"mixed_precision: '{mixed}'",
        "num_machines: 1",
        f"num_processes: {plan.devices}",
        "use_cpu: false",
        f"# Accelerator(gradient_accumulation_steps={plan.grad_accum})",
        f"# DataLoader(..., batch_size={plan.batch})",
        *([f"# model.gradient_checkpointing_enable({again})"] if plan.checkpointing else []),
        *(["# transformers.integrations.liger.apply_liger_kernel(model, None)"] * plan.liger),
        *([f"# model = torch.compile(model, mode={plan.compile!r})"] if plan.compile else []),
        *(f"# {line}" for line in _quantisation(plan) if line),
        *([f"# {_lora(plan)}"] if plan.lora is not None else []),
        *_loading(plan),
        *([_other_layout(plan)] if layout not in (*_TYPES, *ZERO_STAGES) else []),
        *_elsewhere(plan, has_optimizer=False),
    ]


def _accelerate_sharded(plan: Plan, layout: str) -> Lines:
    if layout in ZERO_STAGES:
        steps = plan.grad_accum
        return [
            "deepspeed_config:",
            f"  zero_stage: {ZERO_STAGES[layout]}",
            f"  gradient_accumulation_steps: {steps}",
        ]
    if not layout.startswith("fsdp"):
        return []
    told = {
        "fsdp_version": layout[-1],
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        **{f"fsdp_{name}": str(value).lower() for name, value in plan.parallel_args},
    }
    return ["fsdp_config:", *(f"  {name}: {value}" for name, value in told.items())]


_FLAGS = {"amp-bf16": ["bf16: true"], "amp-fp16": ["fp16: true"], "bf16": ["bf16: full"]}
_FLAGS["bf16+amp"] = _FLAGS["amp-bf16"]
_LOADED = {
    "nf4": ["load_in_4bit: true"],
    "nf4-dq": ["load_in_4bit: true"],
    "int8": ["load_in_8bit: true"],
}
_LIGER = [
    "plugins:",
    "  - axolotl.integrations.liger.LigerPlugin",
    *(
        f"liger_{name}: true"
        for name in ("rope", "rms_norm", "glu_activation", "fused_linear_cross_entropy")
    ),
]
"""What Liger replaces by default, by the names of axolotl's plugin (its docs)."""


def _axolotl(plan: Plan) -> Lines:
    """A config of axolotl (YAML)."""
    named = _optimizer(plan)
    layout = _layout(plan)
    return [
        f"base_model: {plan.model}",
        *([f"sequence_len: {plan.seq}"] if plan.seq else []),
        f"micro_batch_size: {plan.batch}",
        f"gradient_accumulation_steps: {plan.grad_accum}",
        *_FLAGS.get(plan.precision, []),
        *([f"optimizer: {named}"] if named else []),
        *(["gradient_checkpointing: true"] if plan.checkpointing else []),
        *(
            [f"gradient_checkpointing_kwargs: {json.dumps(told)}"]
            if (told := _reentrant(plan))
            else []
        ),
        *(_LIGER if plan.liger else []),
        *_adapted(plan),
        *_axolotl_sharded(plan, layout),
        *([f"# axolotl train this.yaml, over {plan.devices} GPUs"] if layout else []),
        *([f"# quantized: {plan.scheme}"] if plan.scheme and plan.scheme not in _LOADED else []),
        *([_other_layout(plan)] if layout not in ("", "ddp", "fsdp2", *ZERO_STAGES) else []),
        *_elsewhere(plan, has_optimizer=bool(named)),
    ]


def _adapted(plan: Plan) -> Lines:
    if plan.lora is None:
        return []
    lora = adapter(plan.lora)
    targets = (
        ["lora_target_linear: true"]
        if lora.target == "all-linear"
        else ["lora_target_modules:", *(f"  - {name}" for name in lora.target)]
    )
    loaded = _LOADED.get(plan.scheme or "", [])
    return [
        f"adapter: {'qlora' if 'load_in_4bit: true' in loaded else 'lora'}",
        *loaded,
        f"lora_r: {lora.r}",
        f"lora_alpha: {lora.alpha:g}",
        *targets,
    ]


def _axolotl_sharded(plan: Plan, layout: str) -> Lines:
    if layout in ZERO_STAGES:
        return [f"deepspeed: deepspeed_configs/zero{ZERO_STAGES[layout]}.json"]
    if layout != "fsdp2":
        return []
    told = {
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        **{name: str(value).lower() for name, value in plan.parallel_args},
    }
    return [
        "fsdp_version: 2",
        "fsdp_config:",
        *(f"  {name}: {value}" for name, value in told.items()),
    ]


PROGRAMS: dict[str, Callable[[Plan], Lines]] = {
    "trainer": _trainer,
    "accelerate": _accelerate,
    "axolotl": _axolotl,
}


def snippet(plan: Plan, program: str) -> str:
    """The plan as the settings of a program, which is one of ``PROGRAMS``.

    Raises:
        UsageError: there is no such program.
    """
    if program not in PROGRAMS:
        raise unknown("program", program, list(PROGRAMS), hint="see memcalc suggest --help.")
    return "\n".join(PROGRAMS[program](plan)) + "\n"
