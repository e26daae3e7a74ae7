"""How ``TrainingArguments`` spread a run over GPUs: ``fsdp``, ``deepspeed`` and ``ddp_*``.

How many GPUs there are is for the launcher to say. Source: transformers 5.23.0,
``training_args.py``, ``_process_fsdp_args``; axolotl has the same keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from memcalc.catalog import launch_files
from memcalc.catalog.launch_files import Said, accelerate, deepspeed
from memcalc.errors import UsageError

_DDP = ("find_unused_parameters", "bucket_cap_mb", "broadcast_buffers", "static_graph")
_STRATEGIES = ("full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2")
_FIRST = 1


def found(arguments: Mapping[str, Any], folder: Path) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Settings of a plan, and what has no place in one.

    Args:
        arguments: those of ``TrainingArguments``.
        folder: where files that they name are looked for.
    """
    try:
        said = _said(arguments, folder)
    except UsageError as error:
        return {}, (str(error).rstrip("."),)
    left = {key: one for key, one in said.settings.items() if key not in ("precision", "devices")}
    return left, said.unread


def _said(arguments: Mapping[str, Any], folder: Path) -> Said:
    if arguments.get("deepspeed"):
        name = "deepspeed"
        return deepspeed.said(_table(arguments[name], folder), _named(arguments[name], name), {})
    if arguments.get("fsdp"):
        table = _fsdp(arguments["fsdp"], _table(arguments.get("fsdp_config") or {}, folder))
        half = next((name for name in ("bf16", "fp16") if arguments.get(name)), "no")
        whole = {"distributed_type": "FSDP", "mixed_precision": half, "fsdp_config": table}
        return accelerate.said(whole, _named(arguments.get("fsdp_config"), "fsdp_config"), {})
    told = {name: arguments[f"ddp_{name}"] for name in _DDP if _says(arguments, f"ddp_{name}")}
    settings = {"parallel": "ddp", "parallel_args": told} if told else {}
    return Said(file="", settings=settings)


def _says(arguments: Mapping[str, Any], name: str) -> bool:
    return isinstance(arguments.get(name), int | bool)


def _named(value: Any, otherwise: str) -> str:
    return value if isinstance(value, str) else otherwise


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
