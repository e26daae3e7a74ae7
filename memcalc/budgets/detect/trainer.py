"""From the names of transformers' ``TrainingArguments``, or axolotl's, to those of a plan.

Source: transformers 5.23.0, ``training_args.py``; ``max_length``, ``max_seq_length``: trl's
``SFTConfig``.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from memcalc.catalog import launch_files
from memcalc.catalog.launch_files import Said, accelerate, deepspeed
from memcalc.errors import UsageError
from memcalc.records.names import TRAINER_OPTIM

STRONG = (
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "gradient_checkpointing",
    "per_device_eval_batch_size",
    "num_train_epochs",
)
"""Keys that hardly anything else has; two of them make a file one of TrainingArguments."""
MODEL_KEYS = ("model_name_or_path", "model_name", "model_id", "base_model")
PRETRAINED = ("pretrained_model_name_or_path", "model_name_or_path")
_SAME = {
    "per_device_train_batch_size": "batch",
    "gradient_accumulation_steps": "grad_accum",
    "gradient_checkpointing": "checkpointing",
    "max_grad_norm": "max_grad_norm",
    "optim": "optim",
    "use_liger_kernel": "liger",
}
_LENGTHS = ("max_seq_length", "max_length", "block_size", "model_max_length", "max_source_length")
_ELSEWHERE = {
    "load_in_4bit": "4-bit weights",
    "load_in_8bit": "8-bit weights",
    "liger_kernel_config": "which of Liger's kernels",
}


def settings(
    arguments: Mapping[str, Any], folder: Path | None = None
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Translate arguments; files that they name are looked for in the folder.

    Returns:
        Keys of a plan, and what has no place in one.
    """
    found: dict[str, Any] = {"loop": "trainer", "optim": TRAINER_OPTIM}
    for theirs, ours in _SAME.items():
        if arguments.get(theirs) not in (None, False):
            found[ours] = arguments[theirs]
    found |= _reentrant(arguments)
    if arguments.get("torch_compile"):
        found["compile"] = arguments.get("torch_compile_mode") or "default"
    model = next((arguments[key] for key in MODEL_KEYS if arguments.get(key)), None)
    if isinstance(model, str):
        found["model"] = model
    length = next((arguments[key] for key in _LENGTHS if arguments.get(key)), None)
    if isinstance(length, int):
        found["seq"] = length
    halves = {"bf16": "amp-bf16", "fp16": "amp-fp16", "tf32": "tf32"}
    if precision := next((ours for name, ours in halves.items() if arguments.get(name)), None):
        found["precision"] = precision
    if found.get("max_grad_norm") == 1.0:
        del found["max_grad_norm"]
    more, notes = spread_over(arguments, folder or Path())
    # What a file of DeepSpeed says itself is what the Trainer makes sure that its arguments say.
    found = {**more, **found}
    if isinstance(arguments.get("optim_args"), str) and arguments["optim_args"]:
        notes = (*notes, "optim_args are not carried over")
    return found, (*unread(arguments), *notes)


def _reentrant(arguments: Mapping[str, Any]) -> dict[str, bool]:
    """Return the variant of checkpointing that arguments name, as a plan has it."""
    told = arguments.get("gradient_checkpointing_kwargs")
    named = told.get("use_reentrant") if isinstance(told, Mapping) else None
    if not isinstance(named, bool) or not arguments.get("gradient_checkpointing"):
        return {}
    return {"use_reentrant": named}


def unread(arguments: Mapping[str, Any]) -> tuple[str, ...]:
    """What changes memory and has no place in a plan."""
    return tuple(
        f"{key} is not counted ({words})" for key, words in _ELSEWHERE.items() if arguments.get(key)
    )


_DDP = ("find_unused_parameters", "bucket_cap_mb", "broadcast_buffers", "static_graph")
_STRATEGIES = ("full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2")
_FIRST = 1


def spread_over(
    arguments: Mapping[str, Any], folder: Path
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Settings of a plan, and what has no place in one."""
    try:
        said = _said(arguments, folder)
    except UsageError as error:
        return {}, (str(error).rstrip("."),)
    left = {key: one for key, one in said.settings.items() if key not in ("precision", "devices")}
    return left, said.unread


def _said(arguments: Mapping[str, Any], folder: Path) -> Said:

    def named(key: str) -> str:
        return arguments[key] if isinstance(arguments.get(key), str) else key

    if arguments.get("deepspeed"):
        return deepspeed.said(_table(arguments["deepspeed"], folder), named("deepspeed"), {})
    if arguments.get("fsdp"):
        table = _fsdp(arguments["fsdp"], _table(arguments.get("fsdp_config") or {}, folder))
        half = next((name for name in ("bf16", "fp16") if arguments.get(name)), "no")
        whole = {"distributed_type": "FSDP", "mixed_precision": half, "fsdp_config": table}
        return accelerate.said(whole, named("fsdp_config"), {})
    told = {
        name: arguments[f"ddp_{name}"]
        for name in _DDP
        if isinstance(arguments.get(f"ddp_{name}"), int | bool)
    }
    return Said(file="", settings={"parallel": "ddp", "parallel_args": told} if told else {})


def _table(value: Any, folder: Path) -> Mapping[str, Any]:
    """What is written there, or in the file that is named there."""
    if isinstance(value, str):
        return launch_files.mapping(folder / value)
    if not isinstance(value, dict):
        raise UsageError(f"{str(value)[:40]!r} is neither a file nor a table")
    return {str(key): one for key, one in value.items()}


def _fsdp(words: Any, config: Mapping[str, Any]) -> dict[str, Any]:
    """The keys that accelerate has for what ``fsdp`` and ``fsdp_config`` say."""
    keys = {key.removeprefix("fsdp_"): value for key, value in config.items()}
    listed = words.split() if isinstance(words, str) else words if isinstance(words, list) else []
    strategy = next((str(word) for word in listed if word in _STRATEGIES), None)
    keys.setdefault("version", 2)
    keys.setdefault("auto_wrap_policy", "TRANSFORMER_BASED_WRAP")
    keys.setdefault("min_num_params", 0)
    again = keys.pop("reshard_after_forward", strategy or "full_shard")
    if keys["version"] == _FIRST:
        keys.setdefault("sharding_strategy", str(again).upper())
    else:
        named = again in _STRATEGIES
        keys["reshard_after_forward"] = again != "shard_grad_op" if named else again
        keys.pop("forward_prefetch", None)
    if keys.pop("cpu_offload", False) or "offload" in listed:
        keys["offload_params"] = True
    ours = ("xla", "xla_fsdp_v2", "xla_fsdp_grad_ckpt", "limit_all_gathers")
    return {key: value for key, value in keys.items() if key not in ours}


_ATTENTION = {
    "flash_attention": "flash_attention_2",
    "sdp_attention": "sdpa",
    "eager_attention": "eager",
}


def is_axolotl(data: Mapping[str, Any]) -> bool:
    """Does this look like axolotl's?"""
    return "base_model" in data and ("micro_batch_size" in data or "datasets" in data)


_REPLACED = ("rope", "rms_norm", "glu_activation", "fused_linear_cross_entropy")
"""What Liger replaces by default, by the names of axolotl's plugin."""
_QUANT = {"load_in_4bit": "nf4-dq", "load_in_8bit": "int8"}
"""What its switches mean for bitsandbytes (axolotl 002a637, ``loaders/model.py``)."""


def axolotl_settings(
    data: Mapping[str, Any], folder: Path
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Translate; returns keys of a plan, and what has no place in one.

    Source: axolotl 00ce888, ``utils/config/__init__.py``: with ``bf16`` the weights themselves are
    loaded in bfloat16, with ``fp16`` in float16; gradients are clipped at 1.0 by the Trainer.
    """
    found: dict[str, Any] = {"loop": "trainer", "task": "causal-lm"}
    for theirs, ours in (
        ("base_model", "model"),
        ("micro_batch_size", "batch"),
        ("gradient_accumulation_steps", "grad_accum"),
        ("sequence_len", "seq"),
        ("max_grad_norm", "max_grad_norm"),
    ):
        if data.get(theirs):
            found[ours] = data[theirs]
    found["optim"] = data.get("optimizer") or TRAINER_OPTIM
    if data.get("gradient_checkpointing"):
        found["checkpointing"] = True
    found |= _reentrant(data)
    if data.get("bf16") or data.get("bfloat16"):
        # It loads the model in bf16, and tells the Trainer bf16=True unless it is "full".
        found["precision"] = "bf16" if data.get("bf16") == "full" else "bf16+amp"
    elif data.get("fp16") or data.get("float16"):
        found["precision"] = "fp16"
    elif data.get("tf32"):
        found["precision"] = "tf32"
    if attention := next((ours for key, ours in _ATTENTION.items() if data.get(key)), None):
        found["attention"] = attention
    if data.get("adapter") in ("lora", "qlora"):
        targets = data.get("lora_target_modules")
        named = isinstance(targets, list) and targets and not data.get("lora_target_linear")
        target = "+".join(map(str, targets or ())) if named else "all-linear"
        found["lora"] = f"r={data.get('lora_r') or 8},target={target}"
    if quant := next((ours for key, ours in _QUANT.items() if data.get(key)), None):
        found["quant"] = quant
    kernels = [name for name in _REPLACED if data.get(f"liger_{name}")]
    unlike: tuple[str, ...] = ()
    if len(kernels) == len(_REPLACED):
        found["liger"] = True
    elif kernels:
        unlike = (f"liger_{kernels[0]} is not counted (some of Liger's kernels, and not all)",)
    notes = unread({key: one for key, one in data.items() if key not in _QUANT})
    more, left = spread_over(data, folder)
    found, notes = {**more, **found}, (*notes, *unlike, *left)
    if data.get("sample_packing") or data.get("pad_to_sequence_len"):
        found["padding"] = False
    return found, notes
