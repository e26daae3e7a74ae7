"""The YAML of ``accelerate config``.

Source: accelerate 1.15.0, ``commands/config/config_args.py`` (``ClusterConfig``),
``commands/launch.py`` (defaults of what a file leaves out) and ``utils/dataclasses.py``.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from memcalc.dialects import deepspeed
from memcalc.dialects.recipe import Recipe, count, flag, mapping, table
from memcalc.errors import UsageError
from memcalc.records.names import STRATEGIES, WRAPS, ZERO_STAGES
from memcalc.records.plan import Plan
from memcalc.records.values import CompileMode

NAME = "accelerate"
_OF_NO_MATTER = frozenset(
    """
    commands command_file debug distributed_type downcast_bf16 dynamo_backend dynamo_config
    enable_cpu_affinity fp16 fp8_config gpu_ids machine_rank main_process_ip main_process_port
    main_training_function megatron_lm_config mpirun_config num_machines rdzv_backend same_network
    tpu_env tpu_name tpu_use_cluster tpu_use_sudo tpu_vm tpu_zone
    """.split()
)
"""Keys that change no byte, or are looked at by the type of the run."""
_READ = frozenset(
    """
    compute_environment deepspeed_config fsdp_config mixed_precision num_processes
    parallelism_config use_cpu
    """.split()
)
_HALVES = {"bf16": "bfloat16", "fp16": "float16"}
_WRAPPED = ("ddp", "fsdp2")
"""Layouts that accelerate's own code is run with."""
_OF_DEEPSPEED = ("gradient_accumulation_steps", "gradient_clipping")
_COMPILED_OTHERWISE = ("use_dynamic", "use_regional_compilation")
_SIZES = ("dp_replicate_size", "dp_shard_size", "cp_size", "tp_size")
_FSDP_OF_NO_MATTER = frozenset(
    """
    auto_wrap_policy cpu_offload_pin_memory cpu_ram_efficient_loading final_state_dict_type
    limit_all_gathers min_num_params reshard_after_forward state_dict_type sync_module_states
    transformer_layer_cls_to_wrap version
    """.split()
)
_FSDP_READ = frozenset(
    """
    activation_checkpointing backward_prefetch forward_prefetch offload_params sharding_strategy
    use_orig_params
    """.split()
)
"""The second version takes some of these without a meaning, as accelerate itself says."""
_LEAST = 100_000_000
"""What ``accelerate launch`` takes for ``fsdp_min_num_params`` where a file names none."""
_PREFETCHES = ("BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH")


def is_one(data: Mapping[str, Any]) -> bool:
    """Tell whether a file is accelerate's, by its keys."""
    return "compute_environment" in data or {"distributed_type", "mixed_precision"} <= data.keys()


def read(data: Mapping[str, Any], file: str, given: Mapping[str, Any]) -> Recipe:
    """Read the file, with other settings of a plan.

    Raises:
        UsageError: accelerate would not take it, or it asks for what memcalc does not answer.
    """
    _check_keys(data, file)
    kind = _kind(data, file)
    settings, unread = _compiled(data, kind, file)
    half = _half(data, file)
    if half is not None:
        settings["precision"] = f"amp-{half}"
    if data.get("use_cpu") is not None and flag(data["use_cpu"], "use_cpu", file):
        settings["target"] = "cpu"
    world = data.get("num_processes")
    if kind == "NO":
        settings["devices"] = 1
    elif world not in (None, -1):
        # Left out or -1, whoever launches says it.
        settings["devices"] = count(world, "num_processes", file)
    if kind == "MULTI_GPU" and settings.get("devices") != 1:
        settings["parallel"] = "ddp"
    if kind == "FSDP":
        world = settings.get("devices") or given.get("devices")
        sharded, left = _fsdp(data, half, file, world)
        settings, unread = {**settings, **sharded}, [*unread, *left]
    if kind == "DEEPSPEED":
        world = {"devices": settings.get("devices") or given.get("devices")}
        more = _deepspeed(data, half, file, {**given, **world})
        settings, unread = {**settings, **more.settings}, [*unread, *more.unread]
    if settings.get("parallel") in _WRAPPED and given.get("loop") is None:
        settings["loop"] = "accelerate"
    return Recipe(file=file, dialect=NAME, settings=settings, unread=tuple(unread))


def _check_keys(data: Mapping[str, Any], file: str) -> None:
    unknown = sorted(data.keys() - _READ - _OF_NO_MATTER)
    if unknown:
        raise UsageError(
            f"{file} has a key {unknown[0]!r} that accelerate does not take: remove it, or correct "
            "it."
        )
    where = data.get("compute_environment") or "LOCAL_MACHINE"
    if where != "LOCAL_MACHINE":
        raise UsageError(
            f"{file} is for compute_environment {where}: memcalc reads files for LOCAL_MACHINE."
        )


def _kind(data: Mapping[str, Any], file: str) -> str:
    if "distributed_type" not in data:
        raise UsageError(f"{file} has no distributed_type: write one, such as MULTI_GPU or FSDP.")
    # An unquoted NO is false in YAML.
    found = data["distributed_type"] or "NO"
    kind = str(found).upper()
    if kind not in ("NO", "MULTI_GPU", "FSDP", "DEEPSPEED"):
        raise UsageError(
            f"{file} has distributed_type {found}: memcalc supports NO, MULTI_GPU, FSDP and "
            f"DEEPSPEED."
        )
    return kind


def _half(data: Mapping[str, Any], file: str) -> str | None:
    """``bf16``, ``fp16``, or ``None``."""
    found = data.get("mixed_precision")
    if found is None and data.get("fp16"):
        # Of accelerate before 0.11.
        found = "fp16"
    name = str(found or "no").lower()
    if name == "fp8":
        raise UsageError(
            f"{file} asks for mixed_precision fp8, whose kernels memcalc does not know: choose "
            "bf16."
        )
    if name not in ("no", *_HALVES):
        raise UsageError(f"{file}: mixed_precision = {found!r} is none of no, fp16, bf16 and fp8.")
    return None if name == "no" else name


def _compiled(data: Mapping[str, Any], kind: str, file: str) -> tuple[dict[str, Any], list[str]]:
    """The mode of ``torch.compile`` as a setting, and what of it is not counted."""
    config = data.get("dynamo_config")
    config = config if isinstance(config, dict) else {"backend": data.get("dynamo_backend")}
    config = {key.removeprefix("dynamo_"): value for key, value in config.items()}
    # An unquoted NO is false in YAML.
    backend, mode = config.get("backend") or "NO", config.get("mode") or "default"
    if str(backend).upper() == "NO":
        return {}, []
    if str(backend).upper() != "INDUCTOR" or kind == "DEEPSPEED" or data.get("use_cpu"):
        return {}, [f"torch.compile (dynamo_backend {backend})"]
    if mode not in get_args(CompileMode):
        return {}, [f"torch.compile (dynamo_mode {mode})"]
    more = [key for key in _COMPILED_OTHERWISE if config.get(key) and flag(config[key], key, file)]
    return {"compile": mode}, [f"dynamo_{key}" for key in more]


def _deepspeed(
    data: Mapping[str, Any], half: str | None, file: str, given: Mapping[str, Any]
) -> Recipe:
    """Settings of ``distributed_type: DEEPSPEED``, of a file of its own or of a few keys."""
    keys = table(data, "deepspeed_config", file)
    named = keys.get("deepspeed_config_file")
    if named:
        # accelerate looks from where it runs; people write it from where the file is.
        beside = Path(file).expanduser().parent / str(named)
        path = Path(str(named)).expanduser()
        file = str(path if os.path.exists(path) or not os.path.exists(beside) else beside)
        config = dict(mapping(Path(file)))
    else:
        config = {
            "zero_optimization": {
                "stage": count(keys.get("zero_stage", 2), "zero_stage", file),
                "offload_optimizer": {"device": keys.get("offload_optimizer_device")},
                "offload_param": {"device": keys.get("offload_param_device")},
            },
            **{key: keys[key] for key in _OF_DEEPSPEED if keys.get(key) is not None},
            "bf16": {"enabled": "auto"},
            "fp16": {"enabled": "auto"},
        }
    for name in ("bf16", "fp16"):
        part = config.get(name)
        if isinstance(part, dict) and part.get("enabled") == "auto":
            config[name] = {**part, "enabled": name == half}
    return deepspeed.read(config, file, given)


def _fsdp(
    data: Mapping[str, Any], half: str | None, file: str, world: int | None
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Settings and what is not counted of ``distributed_type: FSDP`` over so many processes."""
    keys = {
        key.removeprefix("fsdp_"): value
        for key, value in table(data, "fsdp_config", file).items()
        if value is not None
    }

    def switch(key: str, default: bool) -> bool:
        return flag(keys.get(key, default), f"fsdp_{key}", file)

    version = count(keys.get("version", 1), "fsdp_version", file)
    if version not in (1, 2):
        raise UsageError(f"{file}: fsdp_version = {version}, and there are 1 and 2.")
    arguments = _wrapping(keys, file)
    if half is not None:
        arguments |= {"param_dtype": _HALVES[half], "reduce_dtype": _HALVES[half]}
    if switch("offload_params", False):
        arguments["offload"] = "cpu"
    if version == 1:
        arguments |= _first(keys, file)
    elif not switch("reshard_after_forward", True):
        arguments["reshard_after_forward"] = False
    if version == 2 and switch("forward_prefetch", False):
        raise UsageError(f"{file}: accelerate has no fsdp_forward_prefetch with fsdp_version 2.")
    if str(arguments.get("sharding_strategy")).startswith("HYBRID"):
        arguments["device_mesh"] = _machines(data, file, world)
    unknown = [key for key in keys if key not in _FSDP_READ | _FSDP_OF_NO_MATTER and keys[key]]
    if unknown:
        raise UsageError(
            f"{file}: memcalc does not know whether fsdp_{unknown[0]} changes memory: correct it, "
            "or remove it."
        )
    found: dict[str, Any] = {"parallel": "fsdp1" if version == 1 else _mesh(data, file)}
    if not any(name in found["parallel"] for name in ("fsdp", "hsdp", "cp=")):
        # Nothing is gathered, so there is nothing to gather in another dtype.
        arguments = {}
    if arguments:
        found["parallel_args"] = arguments
    if switch("activation_checkpointing", False):
        found["checkpointing"] = True
    return found, tuple(_left(found["parallel"]))


def _machines(data: Mapping[str, Any], file: str, world: int | None) -> str:
    """Machines by GPUs of each: ``HYBRID_SHARD`` shards in a machine, and each has a copy."""
    machines = count(data.get("num_machines") or 1, "num_machines", file)
    if world is None or world % machines:
        raise UsageError(
            f"{file}: fsdp_sharding_strategy HYBRID_SHARD shards among the GPUs of each of "
            f"{machines} machines: say in num_processes, or with --devices, how many GPUs they "
            "have together."
        )
    return f"{machines}x{world // machines}"


def _left(layout: str) -> list[str]:
    notes = []
    if layout == "fsdp1":
        notes.append("outputs of the model, which accelerate casts to fp32")
    if layout not in ("ddp", "fsdp1", "fsdp2"):
        notes.append("the units that accelerate makes of the embedding and of the head")
    if layout.startswith("tp="):
        notes.append("where transformers' own tp_plan divides other products than memcalc does")
    return notes


def _wrapping(keys: Mapping[str, Any], file: str) -> dict[str, Any]:
    policy = _named(keys, "auto_wrap_policy", "NO_WRAP", WRAPS, file)
    if policy == "NO_WRAP":
        return {"auto_wrap_policy": policy}
    if policy == "SIZE_BASED_WRAP":
        least = keys.get("min_num_params", _LEAST)
        least = 0 if least in (0, "0") else count(least, "fsdp_min_num_params", file)
        return {"auto_wrap_policy": policy, "min_num_params": least}
    names = keys.get("transformer_layer_cls_to_wrap")
    if not names:
        return {}
    listed = names if isinstance(names, list) else str(names).split(",")
    return {"transformer_layer_cls_to_wrap": ",".join(str(name).strip() for name in listed)}


def _first(keys: Mapping[str, Any], file: str) -> dict[str, Any]:
    """Arguments of the first version."""
    strategy = _named(keys, "sharding_strategy", "FULL_SHARD", STRATEGIES, file)
    found: dict[str, Any] = {}
    if strategy != "FULL_SHARD":
        found["sharding_strategy"] = strategy
    # accelerate hands on no prefetching where the file names none; FSDP's own default is another.
    found["backward_prefetch"] = _named(keys, "backward_prefetch", "NO_PREFETCH", _PREFETCHES, file)
    if flag(keys.get("forward_prefetch", False), "fsdp_forward_prefetch", file):
        found["forward_prefetch"] = True
    if not flag(keys.get("use_orig_params", True), "fsdp_use_orig_params", file):
        found["use_orig_params"] = False
    return found


def _named(
    keys: Mapping[str, Any], key: str, default: str, names: tuple[str, ...], file: str
) -> str:
    """One of the names, which accelerate also takes by its number."""
    written = str(keys.get(key, default)).upper()
    if written.isdigit() and 0 < int(written) <= len(names):
        return names[int(written) - 1]
    if written not in names:
        raise UsageError(f"{file}: fsdp_{key} = {written} is none of {', '.join(names)}.")
    return written


def _mesh(data: Mapping[str, Any], file: str) -> str:
    """The layout of the second version by ``parallelism_config``."""
    sizes = {
        key.removeprefix("parallelism_config_"): value
        for key, value in table(data, "parallelism_config", file).items()
    }
    if count(sizes.get("sp_size") or 1, "parallelism_config_sp_size", file) > 1:
        raise UsageError(
            f"{file}: sequence parallelism over processes (sp_size) is not verified against "
            "DeepSpeed's own code yet, so memcalc does not support it."
        )
    copies, shards, context, parts = (
        count(sizes.get(key) or 1, f"parallelism_config_{key}", file) for key in _SIZES
    )
    inner = [f"{name}={size}" for name, size in (("tp", parts), ("cp", context)) if size > 1]
    if copies > 1 and (shards > 1 or inner):
        inner.append(f"hsdp={copies}x{shards}")
    elif shards > 1 and inner:
        inner.append(f"fsdp2={shards}")
    return ",".join(inner) or ("ddp" if copies > 1 else "fsdp2")


_TYPES = {"": "NO", "ddp": "MULTI_GPU", "fsdp1": "FSDP", "fsdp2": "FSDP"}


def layout_of(plan: Plan) -> str:
    """Return the name of a plan's layout over GPUs; empty for one GPU."""
    return (plan.parallel or "ddp").partition("=")[0] if plan.devices > 1 else ""


def write(plan: Plan) -> dict[str, Any]:
    """Write a plan as the YAML of ``accelerate config``; what is of the script is left out."""
    layout = layout_of(plan)
    half = "fp16" if "fp16" in plan.precision else "bf16"
    kind = "DEEPSPEED" if layout in ZERO_STAGES else _TYPES.get(layout, "MULTI_GPU")
    return {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": kind,
        **_sharded(plan, layout),
        "mixed_precision": half if "amp" in plan.precision else "no",
        "num_machines": 1,
        "num_processes": plan.devices,
        "use_cpu": plan.target == "cpu",
    }


def _sharded(plan: Plan, layout: str) -> dict[str, Any]:
    if layout in ZERO_STAGES:
        asked = {"zero_stage": ZERO_STAGES[layout], "gradient_accumulation_steps": plan.grad_accum}
        return {"deepspeed_config": asked}
    if not layout.startswith("fsdp"):
        return {}
    told: dict[str, Any] = {
        "version": int(layout[-1]),
        "auto_wrap_policy": WRAPS[0],
        **dict(plan.parallel_args),
    }
    return {"fsdp_config": {f"fsdp_{name}": value for name, value in told.items()}}


def wrapped_by(options: Mapping[str, Any]) -> str:
    """Return the one of ``WRAPS`` that the arguments of a wrapper name."""
    return str(options.get("auto_wrap_policy", WRAPS[0])).upper()


def plugin(layout: str, options: Mapping[str, Any]) -> dict[str, Any] | None:
    """Write a layout as arguments of accelerate's plugin for FSDP; None: it is no such layout."""
    own: dict[str, Any]
    if layout == "fsdp2":
        own = {
            "fsdp_version": 2,
            "reshard_after_forward": options.get("reshard_after_forward", True),
        }
    elif layout == "fsdp1":
        # What ``accelerate launch`` and ``TrainingArguments`` tell it where nobody says more.
        own = {
            "fsdp_version": 1,
            "reshard_after_forward": options.get("sharding_strategy", "FULL_SHARD"),
            "backward_prefetch": options.get("backward_prefetch", "NO_PREFETCH"),
            "forward_prefetch": bool(options.get("forward_prefetch", False)),
            "use_orig_params": bool(options.get("use_orig_params", True)),
            "sync_module_states": True,
        }
    else:
        return None
    named = options.get("transformer_layer_cls_to_wrap")
    return {
        **own,
        "auto_wrap_policy": wrapped_by(options),
        "min_num_params": options.get("min_num_params"),
        "cpu_offload": options.get("offload") == "cpu",
        "cpu_ram_efficient_loading": False,
        "state_dict_type": "SHARDED_STATE_DICT",
        **({"transformer_cls_names_to_wrap": str(named).split(",")} if named else {}),
    }
