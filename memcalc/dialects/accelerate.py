"""The YAML of ``accelerate config``.

Source: accelerate 1.15.0, ``commands/config/config_args.py`` (``ClusterConfig``),
``commands/launch.py`` (defaults of what a file leaves out) and ``utils/dataclasses.py``.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from memcalc.dialects import deepspeed, fsdp
from memcalc.dialects.format import Format, read_format
from memcalc.dialects.recipe import Keys, Recipe, read_table
from memcalc.errors import UsageError
from memcalc.records.names import AUTOCAST_DTYPES, WRAPS, ZERO_STAGES
from memcalc.records.plan import Plan
from memcalc.records.values import CompileMode

NAME = "accelerate"
_WRAPPED = ("ddp", "fsdp2")
"""Layouts that accelerate's own code is run with."""
_OF_DEEPSPEED = ("gradient_accumulation_steps", "gradient_clipping")
_COMPILED_OTHERWISE = ("use_dynamic", "use_regional_compilation")
_SIZES = ("dp_replicate_size", "dp_shard_size", "cp_size", "tp_size")
_KINDS = ("NO", "MULTI_GPU", "FSDP", "DEEPSPEED")


def is_one(data: Mapping[str, Any]) -> bool:
    """Return True if a table has the keys of accelerate's YAML."""
    return "compute_environment" in data or {"distributed_type", "mixed_precision"} <= data.keys()


def read(data: Mapping[str, Any], file: str, given: Mapping[str, Any]) -> Recipe:
    """Read accelerate's YAML as settings of a plan.

    Raises:
        UsageError: accelerate would not take it, or it asks for what memcalc does not answer.
    """
    keys = Keys(data, file, NAME, read_format("accelerate"))
    where = keys.get("compute_environment") or "LOCAL_MACHINE"
    if where != "LOCAL_MACHINE":
        raise UsageError(
            f"{file} is for compute_environment {where}: memcalc reads files for LOCAL_MACHINE."
        )
    kind, float8 = _read_kind(keys), _read_float8(keys)
    half = "bf16" if float8 else _read_mixed_precision(keys)
    settings: dict[str, Any] = {
        "compile": _read_compile_mode(keys, kind),
        "precision": f"amp-{half}" if half is not None else None,
        "float8": float8,
        "target": "cpu" if keys.flag("use_cpu") else None,
    }
    if kind == "NO":
        settings["devices"] = 1
    elif keys.get("num_processes") != -1:
        # Left out or -1, whoever launches says it.
        settings["devices"] = keys.count("num_processes")
    world = settings.get("devices") or given.get("devices")
    if kind == "MULTI_GPU" and settings.get("devices") != 1:
        settings["parallel"] = "ddp"
    if kind == "FSDP":
        settings |= _read_fsdp(keys, half, world)
    if kind == "DEEPSPEED":
        more = _read_deepspeed(keys, half, {**given, "devices": world})
        settings |= more.settings
        keys.unread += more.unread
    if settings.get("parallel") in _WRAPPED and given.get("loop") is None:
        settings["loop"] = "accelerate"
    return keys.recipe(settings)


def _read_kind(keys: Keys) -> str:
    """Return ``distributed_type``, such as ``FSDP``, after checking it."""
    if "distributed_type" not in keys.data:
        raise UsageError(
            f"{keys.file} has no distributed_type: write one, such as MULTI_GPU or FSDP."
        )
    # An unquoted NO is false in YAML.
    found = keys.get("distributed_type") or "NO"
    kind = str(found).upper()
    if kind not in _KINDS:
        raise UsageError(
            f"{keys.file} has distributed_type {found}: memcalc supports NO, MULTI_GPU, FSDP and "
            f"DEEPSPEED."
        )
    return kind


def _read_float8(keys: Keys) -> str | None:
    """Return torchao's recipe of ``mixed_precision: fp8``, or None if it is another."""
    if str(keys.get("mixed_precision")).lower() != "fp8":
        return None
    told = keys.section("fp8_config")
    backend = told.get("backend") or "AO"
    if str(backend).upper() != "AO":
        raise UsageError(
            f"{keys.file} asks for fp8 by {backend}, whose kernels memcalc does not know: choose "
            "backend AO (torchao), or mixed_precision bf16."
        )
    told.finish()
    return "tensorwise"


def _read_mixed_precision(keys: Keys) -> str | None:
    """Return ``mixed_precision``: ``bf16``, ``fp16``, or None for full precision."""
    found = keys.get("mixed_precision")
    if found is None and keys.get("fp16"):
        # Of accelerate before 0.11.
        found = "fp16"
    name = str(found or "no").lower()
    if name != "no" and f"amp-{name}" not in AUTOCAST_DTYPES:
        raise keys.refusal("mixed_precision", found, "is none of no, fp16, bf16 and fp8")
    return None if name == "no" else name


def _read_compile_mode(keys: Keys, kind: str) -> str | None:
    """Return the mode of ``torch.compile`` or None; note settings that are not counted."""
    config = keys.get("dynamo_config")
    config = config if isinstance(config, dict) else {"backend": keys.get("dynamo_backend")}
    plain = {key.removeprefix("dynamo_"): value for key, value in config.items()}
    told = Keys(plain, keys.file, NAME, Format(), "dynamo_")
    # An unquoted NO is false in YAML.
    backend, mode = told.get("backend") or "NO", told.get("mode") or "default"
    if str(backend).upper() == "NO":
        return None
    if str(backend).upper() != "INDUCTOR" or kind == "DEEPSPEED" or keys.get("use_cpu"):
        keys.unread.append(f"torch.compile (dynamo_backend {backend})")
        return None
    if mode not in get_args(CompileMode):
        keys.unread.append(f"torch.compile (dynamo_mode {mode})")
        return None
    keys.unread += [f"dynamo_{key}" for key in _COMPILED_OTHERWISE if told.flag(key)]
    return str(mode)


def _read_deepspeed(keys: Keys, half: str | None, given: Mapping[str, Any]) -> Recipe:
    """Read DeepSpeed's settings, from the file that is named or from accelerate's keys."""
    told, file = keys.section("deepspeed_config"), keys.file
    named = told.get("deepspeed_config_file")
    if named:
        # accelerate looks from where it runs; people write it from where the file is.
        beside = Path(file).expanduser().parent / str(named)
        path = Path(str(named)).expanduser()
        file = str(path if os.path.exists(path) or not os.path.exists(beside) else beside)
        config = dict(read_table(Path(file)))
    else:
        config = {
            "zero_optimization": {
                "stage": told.count("zero_stage") or 2,
                "offload_optimizer": {"device": told.get("offload_optimizer_device")},
                "offload_param": {"device": told.get("offload_param_device")},
            },
            **{key: told.get(key) for key in _OF_DEEPSPEED if told.get(key) is not None},
            "bf16": {"enabled": "auto"},
            "fp16": {"enabled": "auto"},
        }
    for name in ("bf16", "fp16"):
        part = config.get(name)
        if isinstance(part, dict) and part.get("enabled") == "auto":
            config[name] = {**part, "enabled": name == half}
    return deepspeed.read(config, file, given)


def _read_fsdp(keys: Keys, half: str | None, world: int | None) -> dict[str, Any]:
    """Read FSDP's settings as a layout and its arguments."""
    told = keys.section("fsdp_config", "fsdp_")
    version, arguments = fsdp.read(told, half)
    if str(arguments.get("sharding_strategy")).startswith("HYBRID"):
        arguments["device_mesh"] = _divide_by_machine(keys, world)
    layout = "fsdp1" if version == 1 else _read_mesh(keys)
    if not any(name in layout for name in ("fsdp", "hsdp", "cp=")):
        # Nothing is gathered, so there is nothing to gather in another dtype.
        arguments = {}
    again = told.flag("activation_checkpointing") or None
    told.view({key: value for key, value in told.data.items() if value}).finish()
    if layout == "fsdp1":
        keys.unread.append("outputs of the model, which accelerate casts to fp32")
    if layout not in ("ddp", "fsdp1", "fsdp2"):
        keys.unread.append("the units that accelerate makes of the embedding and of the head")
    if layout.startswith("tp="):
        keys.unread.append(
            "where transformers' own tp_plan divides other products than memcalc does"
        )
    return {"parallel": layout, "parallel_args": arguments or None, "checkpointing": again}


def _divide_by_machine(keys: Keys, world: int | None) -> str:
    """Return ``machines x GPUs of each``, the mesh of ``HYBRID_SHARD``."""
    machines = keys.count("num_machines") or 1
    if world is None or world % machines:
        raise UsageError(
            f"{keys.file}: fsdp_sharding_strategy HYBRID_SHARD shards among the GPUs of each of "
            f"{machines} machines: say in num_processes, or with --devices, how many GPUs they "
            "have together."
        )
    return f"{machines}x{world // machines}"


def _read_mesh(keys: Keys) -> str:
    """Return the layout of ``parallelism_config``, such as ``tp=2,fsdp2=4``."""
    told = keys.section("parallelism_config", "parallelism_config_")
    if (told.count("sp_size") or 1) > 1:
        raise UsageError(
            f"{keys.file}: sequence parallelism over processes (sp_size) is not verified against "
            "DeepSpeed's own code yet, so memcalc does not support it."
        )
    copies, shards, context, parts = (told.count(key) or 1 for key in _SIZES)
    inner = [f"{name}={size}" for name, size in (("tp", parts), ("cp", context)) if size > 1]
    if copies > 1 and (shards > 1 or inner):
        inner.append(f"hsdp={copies}x{shards}")
    elif shards > 1 and inner:
        inner.append(f"fsdp2={shards}")
    return ",".join(inner) or ("ddp" if copies > 1 else "fsdp2")


_TYPES = {"": "NO", "ddp": "MULTI_GPU", "fsdp1": "FSDP", "fsdp2": "FSDP"}


def name_layout(plan: Plan) -> str:
    """Return the name of a plan's parallel layout without sizes; "" for one GPU."""
    return (plan.parallel or "ddp").partition("=")[0] if plan.devices > 1 else ""


def half_precision(plan: Plan) -> str:
    """Return "fp16" if a plan's precision is fp16 or amp-fp16, else "bf16"."""
    return "fp16" if "fp16" in plan.precision else "bf16"


def write(plan: Plan) -> dict[str, Any]:
    """Return a plan as the YAML of ``accelerate config``, without settings of the script."""
    layout = name_layout(plan)
    kind = "DEEPSPEED" if layout in ZERO_STAGES else _TYPES.get(layout, "MULTI_GPU")
    return {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": kind,
        **_write_layout(plan, layout),
        "mixed_precision": half_precision(plan) if "amp" in plan.precision else "no",
        **({"mixed_precision": "fp8", "fp8_config": {"backend": "AO"}} if plan.float8 else {}),
        "num_machines": 1,
        "num_processes": plan.devices,
        "use_cpu": plan.target == "cpu",
    }


def _write_layout(plan: Plan, layout: str) -> dict[str, Any]:
    if layout in ZERO_STAGES:
        asked = {"zero_stage": ZERO_STAGES[layout], "gradient_accumulation_steps": plan.grad_accum}
        return {"deepspeed_config": asked}
    if not layout.startswith("fsdp"):
        return {}
    told = {"auto_wrap_policy": WRAPS[0], **fsdp.write(plan, "offload_params")}
    return {"fsdp_config": {f"fsdp_{name}": value for name, value in told.items()}}
