"""transformers' ``TrainingArguments``, as JSON or YAML, and what recipes built on them share.

Source: transformers 5.23, ``training_args.py``, and the arguments of its example scripts.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from memcalc import registry
from memcalc.dialects import accelerate, deepspeed, fsdp
from memcalc.dialects.format import read_format
from memcalc.dialects.recipe import (
    Keys,
    Recipe,
    attention,
    model,
    optimizer,
    read_table,
    select_arguments,
)
from memcalc.dialects.weights import read_lora, read_quant
from memcalc.errors import UsageError
from memcalc.records.plan import Plan
from memcalc.records.values import adapter, scalar

NAME = "TrainingArguments"
STRONG = (
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "gradient_checkpointing",
    "per_device_eval_batch_size",
    "num_train_epochs",
)
"""Keys that hardly anything else has; two of them make a file one of TrainingArguments."""
_HALVES = {"bf16": "amp-bf16", "fp16": "amp-fp16", "tf32": "tf32"}
OVER_FP16 = "how autocast over fp16 weights differs from fp16 without it"
_DDP = ("find_unused_parameters", "bucket_cap_mb", "broadcast_buffers", "static_graph")


def is_one(data: Mapping[str, Any]) -> bool:
    """Return True if a table has keys of TrainingArguments."""
    return sum(key in data for key in STRONG) >= 2


def read(data: Mapping[str, Any], file: str, given: Mapping[str, Any]) -> Recipe:
    """Read TrainingArguments, model and length as settings of a plan.

    Raises:
        UsageError: a key asks for what memcalc does not answer, or is none.
    """
    keys = Keys(data, file, NAME, read_format("trainer"))
    settings = read_arguments(keys, given)
    if keys.flag("adafactor"):
        settings["optim"] = "adafactor"
    return keys.recipe(settings)


def read_arguments(keys: Keys, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recipe's TrainingArguments as settings of a plan.

    ``given``: settings that were typed beside the file, which decide its layout too.

    Raises:
        UsageError: one asks for what memcalc does not answer.
    """
    form = keys.form
    devices = keys.count("NPROC_PER_NODE")
    given = {**given, "devices": given.get("devices") or devices}
    quant = read_quant(keys) if form.quant is not None else None
    precisions = [ours for name, ours in _HALVES.items() if keys.flag(name)]
    found: dict[str, Any] = {
        "loop": "trainer",
        "model": model(keys, *keys.setting("model")),
        "task": form.task,
        "batch": keys.count(*keys.setting("batch")),
        "seq": keys.count(*keys.setting("seq")),
        "grad_accum": keys.count(*keys.setting("grad_accum")),
        "optim": optimizer(keys, "trainer", *keys.setting("optim")),
        "max_grad_norm": _read_clipping(keys),
        "checkpointing": keys.flag(*keys.setting("checkpointing")) or None,
        "use_reentrant": _read_reentrant(keys),
        "kv_cache": keys.flag("use_cache") or None,
        "precision": next(iter(precisions), None),
        "attention": attention(keys) if form.attention else None,
        "target": "cpu" if keys.flag("use_cpu") else None,
        "resume": bool(keys.get("resume_from_checkpoint")) or None,
        "liger": _read_liger(keys),
        "compile": _read_compile_mode(keys),
        "quant": quant,
        "kbit_prepare": None if quant is None else False,
        "lora": read_lora(keys) if form.lora is not None else None,
        "padding": False if keys.any_flag(form.unpadded) else None,
    }
    if keys.get("optim_args"):
        found["optim_args"] = _read_optimizer_arguments(keys, str(found["optim"]))
    _note_evaluation(keys, found["batch"] or 1)
    more, unread = _read_layout(keys, given)
    keys.unread += unread
    if devices is not None:
        more = {"devices": devices, **more}
    # A file of DeepSpeed says itself what the Trainer makes sure that its arguments say.
    return {**more, **{key: one for key, one in found.items() if one is not None}}


def _read_clipping(keys: Keys) -> float | None:
    """Return the norm that gradients are clipped to, or None for the default."""
    norm = keys.get("max_grad_norm")
    if norm in (None, 1, 1.0):
        return None
    if isinstance(norm, bool) or not isinstance(norm, int | float) or norm <= 0:
        raise keys.error("max_grad_norm", "clips nothing, and the Trainer's loop here clips",
                         "leave it out")  # fmt: skip
    return float(norm)


def _read_liger(keys: Keys) -> bool | None:
    """Return True if all of Liger's kernels replace the model's, else None."""
    if isinstance(config := keys.get("liger_kernel_config"), dict) and not all(config.values()):
        raise keys.error("liger_kernel_config", "takes some of Liger's kernels and not all")
    return keys.flag(*keys.setting("liger")) or None


def _read_reentrant(keys: Keys) -> bool | None:
    """Return ``use_reentrant`` of checkpointing, or None if not set."""
    told = keys.get("gradient_checkpointing_kwargs", "activation_checkpointing_kwargs")
    named = told.get("use_reentrant") if isinstance(told, dict) else None
    return named if isinstance(named, bool) and keys.flag(*keys.setting("checkpointing")) else None


def _read_compile_mode(keys: Keys) -> str | None:
    mode = keys.get("torch_compile_mode")
    backend = keys.get("torch_compile_backend")
    if backend not in (None, "inductor"):
        raise keys.error("torch_compile_backend", "is no compiler that memcalc runs")
    return str(mode or "default") if keys.flag("torch_compile") or mode else None


def _read_optimizer_arguments(keys: Keys, name: str) -> dict[str, Any]:
    """Return the ``optim_args`` that change memory, after checking their names."""
    pairs = keys.get("optim_args")
    if not isinstance(pairs, dict):
        parts = [part.partition("=") for part in str(pairs).replace(" ", "").split(",") if part]
        if not all(equals for _, equals, _ in parts):
            raise keys.error("optim_args", "is not understood", "write name=value,name=value")
        pairs = {key: scalar(value) for key, _, value in parts}
    return select_arguments(keys, "optim_args", name, "trainer", pairs)


def _note_evaluation(keys: Keys, batch: int) -> None:
    """Note as uncounted evaluation that generates or has larger batches than training."""
    evaluates = str(keys.get("eval_strategy", "evaluation_strategy") or "no").lower() != "no"
    if evaluates:
        size = keys.count("per_device_eval_batch_size", "per_gpu_eval_batch_size") or 8
        if size > batch:
            keys.unread.append(f"evaluation in batches of {size}")
    if evaluates and keys.flag("predict_with_generate"):
        keys.unread.append("evaluation that generates")
    keys.get("predict_with_generate", "generation_max_length")
    keys.get("generation_num_beams", "generation_config")


def _read_layout(keys: Keys, given: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the settings of DeepSpeed, FSDP or DDP in a recipe or the files it names.

    Returns:
        Settings of a plan, and what is not counted.
    """
    folder = Path(keys.file).expanduser().parent
    asked = {
        key: keys.get(key) for key in ("deepspeed", "fsdp", "fsdp_config", "accelerate_config")
    }
    ddp = {name: keys.get(f"ddp_{name}") for name in _DDP}
    if asked["deepspeed"]:
        config, name = _read_table_or_file(keys, "deepspeed", folder)
        said = deepspeed.read({**config, **_fill_precision(keys, config)}, name, given)
    elif asked["fsdp"] or asked["fsdp_config"]:
        config, name = _read_table_or_file(keys, "fsdp_config", folder)
        half = next((one for one in ("bf16", "fp16") if keys.get(one)), "no")
        table = fsdp.translate(asked["fsdp"], config)
        whole = {"distributed_type": "FSDP", "mixed_precision": half, "fsdp_config": table}
        said = accelerate.read(whole, name, given)
    elif asked["accelerate_config"]:
        said = accelerate.read(*_read_table_or_file(keys, "accelerate_config", folder), given)
    else:
        told = {name: value for name, value in ddp.items() if isinstance(value, int | bool)}
        return ({"parallel": "ddp", "parallel_args": told} if told else {}), ()
    own = ("precision", "loop") if asked["accelerate_config"] else ("precision", "devices")
    left = {key: one for key, one in said.settings.items() if key not in own}
    return left, said.unread


def _fill_precision(keys: Keys, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return DeepSpeed's ``bf16`` and ``fp16`` with ``auto`` replaced by the Trainer's."""
    return {
        name: {**config[name], "enabled": bool(keys.get(name))}
        for name in ("bf16", "fp16")
        if isinstance(config.get(name), dict) and config[name].get("enabled") == deepspeed.AUTO
    }


def _read_table_or_file(keys: Keys, key: str, folder: Path) -> tuple[dict[str, Any], str]:
    """Return the table under a key, or in the file that the key names, and its name."""
    value = keys.get(key)
    if value is None:
        return {}, keys.file
    if isinstance(value, str):
        # Frameworks look from where they run; people write it from where the file is, or above.
        above = (Path(), folder, *list(folder.absolute().parents)[:5])
        place = next((one / value for one in above if (one / value).is_file()), None)
        if place is None:
            raise UsageError(f"{keys.file}: {key} = {value}: there is no such file.")
        return dict(read_table(place)), value
    if not isinstance(value, dict):
        raise keys.error(key, "is neither a file nor a table", "correct it")
    return {str(name): one for name, one in value.items()}, f"{keys.file}, {key}"


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


OFF = ("keep_outputs", "kv_cache")
"""Fields of a plan that are off by default wherever a program brings the loop."""
NAMED = tuple(_OPTIMIZERS.values())
"""The Trainer's own names of optimizers, beside AdamW's."""


def optimizer_name(plan: Plan) -> str | None:
    """Return the Trainer's name of the plan's optimizer, or None."""
    row = registry.of(plan).row.name
    if row == "adamw":
        return "adamw_torch_fused" if dict(plan.optim_args).get("fused") else "adamw_torch"
    return row if row.startswith("adamw_torch") else _OPTIMIZERS.get(row)


def settle(plan: Plan, loop: str) -> Plan:
    """Return a plan with one name for each thing and, under the Trainer's loop, its defaults.

    So two plans that a recipe of the Trainer cannot tell apart become equal.
    """
    row = registry.of(plan).row
    adapters = None if plan.adapters is None else repr(adapter(plan.adapters))
    settled = replace(plan, optim=row.name, lora=adapters, quant=plan.scheme)
    if loop != "trainer":
        return settled
    named = optimizer_name(plan)
    more = tuple(pair for pair in plan.optim_args if pair[0] != "fused")
    known = {"optim": named, "optim_args": more} if named else {}
    off = {name: bool(getattr(plan, name)) for name in OFF}
    return replace(settled, **off, **known)


def write(plan: Plan) -> dict[str, Any]:
    """Return a plan as TrainingArguments, without settings these cannot express."""
    named = optimizer_name(plan)
    return {
        "per_device_train_batch_size": plan.batch,
        "gradient_accumulation_steps": plan.grad_accum,
        **({accelerate.half_precision(plan): True} if "amp" in plan.precision else {}),
        **({"gradient_checkpointing": True} if plan.checkpointing else {}),
        **(
            {"gradient_checkpointing_kwargs": {"use_reentrant": plan.use_reentrant}}
            if plan.use_reentrant is not None
            else {}
        ),
        **({"use_liger_kernel": True} if plan.liger else {}),
        **({"torch_compile": True, "torch_compile_mode": plan.compile} if plan.compile else {}),
        **({"optim": named} if named else {}),
        **({"max_grad_norm": plan.max_grad_norm} if plan.max_grad_norm is not None else {}),
        **_write_layout(plan),
    }


def _write_layout(plan: Plan) -> dict[str, Any]:
    if plan.devices == 1 or plan.parallel not in ("fsdp1", "fsdp2"):
        return {}
    return {"fsdp": True, "fsdp_config": fsdp.write(plan, "cpu_offload")}
