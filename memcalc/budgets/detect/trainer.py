"""From the names of transformers' ``TrainingArguments`` to those of a plan.

Source: transformers 5.23.0, ``training_args.py``; ``max_length``, ``max_seq_length``: trl's
``SFTConfig``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from memcalc.budgets.detect import parallelism

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
DEFAULT_OPTIM = "adamw_torch_fused"
"""Of the Trainer since PyTorch 2.8."""


def settings(
    arguments: Mapping[str, Any], folder: Path | None = None
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Translate arguments.

    Args:
        arguments: by their names.
        folder: where files that they name are looked for; ``None``: here.

    Returns:
        Keys of a plan, and what has no place in one.
    """
    found: dict[str, Any] = {"loop": "trainer", "optim": DEFAULT_OPTIM}
    for theirs, ours in _SAME.items():
        if arguments.get(theirs) not in (None, False):
            found[ours] = arguments[theirs]
    if arguments.get("torch_compile"):
        found["compile"] = arguments.get("torch_compile_mode") or "default"
    model = next((arguments[key] for key in MODEL_KEYS if arguments.get(key)), None)
    if isinstance(model, str):
        found["model"] = model
    length = next((arguments[key] for key in _LENGTHS if arguments.get(key)), None)
    if isinstance(length, int):
        found["seq"] = length
    precision = _precision(arguments)
    if precision is not None:
        found["precision"] = precision
    if found.get("max_grad_norm") == 1.0:
        del found["max_grad_norm"]
    more, notes = parallelism.found(arguments, folder or Path())
    # What a file of DeepSpeed says itself is what the Trainer makes sure that its arguments say.
    found = {**more, **found}
    if isinstance(arguments.get("optim_args"), str) and arguments["optim_args"]:
        notes = (*notes, "optim_args are not carried over")
    return found, (*unread(arguments), *notes)


def unread(arguments: Mapping[str, Any]) -> tuple[str, ...]:
    """What changes memory and has no place in a plan."""
    return tuple(
        f"{key} is not counted ({words})" for key, words in _ELSEWHERE.items() if arguments.get(key)
    )


def _precision(arguments: Mapping[str, Any]) -> str | None:
    if arguments.get("bf16"):
        return "amp-bf16"
    if arguments.get("fp16"):
        return "amp-fp16"
    return "tf32" if arguments.get("tf32") else None
