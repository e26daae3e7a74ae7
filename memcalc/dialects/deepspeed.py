"""The JSON that configures DeepSpeed, with the ``auto`` of transformers and accelerate.

Source: DeepSpeed 0.19.8, ``runtime/config.py``, ``runtime/zero/config.py`` and
``runtime/precision_config.py``; transformers 5.23, ``integrations/deepspeed.py``.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from memcalc.dialects.recipe import Recipe, count, flag, table
from memcalc.errors import UsageError
from memcalc.records.names import ZERO_STAGES
from memcalc.records.plan import Plan

NAME = "DeepSpeed"
AUTO = "auto"
"""Whoever reads the file, such as the Trainer, fills it in."""
_LAYOUTS = {stage: layout for layout, stage in ZERO_STAGES.items()}
_NUMBERS = ("allgather_bucket_size", "reduce_bucket_size", "sub_group_size")
_SWITCHES = (
    *("allgather_partitions", "contiguous_gradients", "overlap_comm", "reduce_scatter"),
    "round_robin_gradients",
)
_NUMBERS_3 = (
    *("stage3_max_live_parameters", "stage3_max_reuse_distance"),
    *("stage3_module_granularity_threshold", "stage3_param_persistence_threshold"),
    *("stage3_prefetch_bucket_size", "zero_hpz_partition_size"),
)
_FILLED = (
    "reduce_bucket_size",
    "stage3_param_persistence_threshold",
    "stage3_prefetch_bucket_size",
)
"""What transformers and accelerate fill in by the model's width; ``auto`` elsewhere is DeepSpeed's
own default."""
_ZERO_OF_NO_MATTER = frozenset(
    """
    cpu_offload_use_pin_memory elastic_checkpoint enable_sanity_checks
    gather_16bit_weights_on_model_save ignore_unused_parameters load_from_fp32_weights
    log_trace_cache_warnings override_module_apply pipeline_loading_checkpoint
    stage3_gather_16bit_weights_on_model_save stage3_gather_fp16_weights_on_model_save
    """.split()
)
_ZERO_READ = frozenset(
    (*_NUMBERS, *_SWITCHES, *_NUMBERS_3, "stage", "cpu_offload", "cpu_offload_param")
) | {"offload_optimizer", "offload_param"}
_ZERO_REFUSED = {
    "zero_quantized_weights": "quantized weights",
    "zero_quantized_nontrainable_weights": "quantized weights",
    "zero_quantized_gradients": "quantized gradients",
    "mics_shard_size": "shards within groups",
    "zenflow": "ZenFlow",
}
_OF_NO_MATTER = frozenset(
    """
    activation_checkpointing aio autotuning checkpoint comet comms_config comms_logger csv_monitor
    curriculum_learning data_efficiency dataloader_drop_last disable_allgather dump_state elasticity
    flops_profiler gradient_predivide_factor load_universal_checkpoint memory_breakdown monitor
    nebula prescale_gradients scheduler seed steps_per_print tensorboard timers wall_clock_breakdown
    wandb zero_allow_untested_optimizer zero_force_ds_cpu_optimizer
    """.split()
)
_READ = frozenset(
    """
    bf16 bfloat16 communication_data_type data_types fp16 gradient_accumulation_steps
    gradient_clipping optimizer train_batch_size train_micro_batch_size_per_gpu zero_optimization
    """.split()
)
_REFUSED = {
    "amp": "apex",
    "compression_training": "compression",
    "hybrid_engine": "the hybrid engine",
    "progressive_layer_drop": "dropped layers",
    "tensor_parallel": "DeepSpeed's tensor parallelism",
    "torch_autocast": "torch_autocast",
}
_SCALING = frozenset(
    """
    auto_cast consecutive_hysteresis enabled hysteresis initial_scale_power loss_scale
    loss_scale_window min_loss_scale
    """.split()
)


def is_one(data: Mapping[str, Any]) -> bool:
    """Tell whether a file is DeepSpeed's, by its keys."""
    known = ("train_micro_batch_size_per_gpu", "train_batch_size", "bf16", "fp16", "optimizer")
    return "zero_optimization" in data or (
        any(isinstance(data.get(key), dict) for key in known[2:]) and known[0] in data
    )


def read(data: Mapping[str, Any], file: str, given: Mapping[str, Any]) -> Recipe:
    """Read the file, with the devices and the optimizer that are given.

    Raises:
        UsageError: DeepSpeed would not take it, or it asks for what memcalc does not answer.
    """
    for key, name in _REFUSED.items():
        if _is_on(data.get(key)):
            raise UsageError(f"{file}: {name} ({key}) is not supported: remove it from the file.")
    zero = table(data, "zero_optimization", file)
    stage = zero.get("stage", 0)
    if stage not in (1, 2, 3) or isinstance(stage, bool):
        raise UsageError(
            f"{file}: ZeRO stage {stage} is not supported: memcalc supports stages 1, 2 and 3, and "
            f"plain data parallelism as --parallel ddp."
        )
    # In which dtypes gradients are sent and summed.
    dtypes = {
        "communication_data_type": data.get("communication_data_type"),
        "grad_accum_dtype": table(data, "data_types", file).get("grad_accum_dtype"),
    }
    told = {key: str(dtype) for key, dtype in dtypes.items() if dtype not in (None, AUTO)}
    arguments = {**_arguments(zero, stage, file), **told}
    settings: dict[str, Any] = {"parallel": _LAYOUTS[stage]}
    if arguments:
        settings["parallel_args"] = arguments
    settings |= _precision(data, file)
    settings |= _batches(data, given, file)
    norm = data.get("gradient_clipping")
    if norm not in (None, AUTO, 0, 0.0):
        settings["max_grad_norm"] = norm
    _check_keys(data, zero, file)
    unread = [*_left(data)]
    optimizer, note = _optimizer(data, "offload" in arguments, file)
    if optimizer is not None and given.get("optim") is None:
        settings["optim"] = optimizer
        unread += note
    return Recipe(file=file, dialect=NAME, settings=settings, unread=tuple(unread))


def _is_on(value: Any) -> bool:
    if isinstance(value, dict):
        sizes = [value.get(key) for key in ("autotp_size", "tp_size") if value.get(key)]
        return (
            value.get("enabled") not in (None, False)
            or bool(sizes)
            or any(_is_on(one) for one in value.values() if isinstance(one, dict))
        )
    return bool(value)


def _arguments(zero: Mapping[str, Any], stage: int, file: str) -> dict[str, Any]:
    """Arguments of the layout; what only stage 3 looks at is left out of others."""
    for key, name in _ZERO_REFUSED.items():
        if zero.get(key) not in (None, False, 0, -1, {}):
            raise UsageError(
                f"{file}: {name} (zero_optimization.{key}) is not verified against DeepSpeed's "
                f"own code yet, so memcalc does not support it."
            )
    found: dict[str, Any] = {}
    for key in (*_NUMBERS, *(_NUMBERS_3 if stage == 3 else ())):
        value = zero.get(key)
        if value == AUTO and key in _FILLED:
            found[key] = AUTO
        elif value not in (None, AUTO):
            found[key] = 0 if value == 0 else count(value, key, file)
    for key in _SWITCHES:
        if zero.get(key) not in (None, AUTO):
            found[key] = flag(zero[key], key, file)
    return found | dict.fromkeys(_offloaded(zero, stage, file), "cpu")


def _offloaded(zero: Mapping[str, Any], stage: int, file: str) -> Iterator[str]:
    for name, key, old in (
        ("offload", "offload_optimizer", "cpu_offload"),
        ("offload_param", "offload_param", "cpu_offload_param"),
    ):
        place = table(zero, key, file)
        device = str(place.get("device") or "none").lower()
        if device == "none" and zero.get(old):
            device = "cpu"
        if device not in ("none", "cpu", AUTO):
            raise UsageError(
                f"{file}: {key} to {device} is not supported: memcalc supports device cpu."
            )
        if place.get("ratio") not in (None, 1, 1.0, AUTO):
            raise UsageError(
                f"{file}: {key} of a part (ratio {place['ratio']}) is not supported: memcalc "
                f"supports ratio 1."
            )
        if device == "cpu" and (name == "offload" or stage == 3):
            yield name


def _precision(data: Mapping[str, Any], file: str) -> dict[str, Any]:
    halves = {
        "amp-bf16": table(data, "bf16" if "bf16" in data else "bfloat16", file).get("enabled"),
        "amp-fp16": table(data, "fp16", file).get("enabled"),
    }
    on = [
        name
        for name, value in halves.items()
        if value not in (None, AUTO) and flag(value, "enabled", file)
    ]
    if len(on) > 1:
        raise UsageError(f"{file}: bf16 and fp16 are both enabled: disable one.")
    if on:
        return {"precision": on[0]}
    return {} if AUTO in halves.values() else {"precision": "fp32"}


def _batches(data: Mapping[str, Any], given: Mapping[str, Any], file: str) -> dict[str, Any]:
    """Micro-batch and accumulation: DeepSpeed works out the one of three that is missing."""
    keys = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    whole, micro, steps = (
        None if data.get(key) in (None, AUTO) else count(data[key], key, file) for key in keys
    )
    world = given.get("devices") or 1
    if whole is not None:
        rest = micro or steps or 1
        other, left = divmod(whole, world * rest)
        if left or not other or (micro and steps and other != steps):
            raise UsageError(
                f"{file}: train_batch_size {whole} is not made of {world} GPUs with a micro-batch "
                f"of {micro or 'any size'} and {steps or 'any number of'} accumulated steps: say "
                "how many GPUs with --devices, or correct one."
            )
        micro, steps = (micro, other) if micro else (other, rest)
    found = {"batch": micro, "grad_accum": steps}
    return {name: value for name, value in found.items() if value is not None}


def _optimizer(
    data: Mapping[str, Any], offloaded: bool, file: str
) -> tuple[str | None, tuple[str, ...]]:
    """The optimizer by its name here, and what is not known of it."""
    asked = table(data, "optimizer", file)
    kind = str(asked.get("type") or "").lower()
    if not kind:
        return None, ()
    if kind not in ("adam", "adamw"):
        raise UsageError(
            f"{file}: optimizer {asked['type']} is DeepSpeed's own kernel, which memcalc does not "
            "know: name one that is handed to deepspeed.initialize, such as --optim adamw."
        )
    params = asked.get("params")
    if offloaded or (isinstance(params, dict) and params.get("torch_adam")):
        return "adamw", ()
    return "adamw_torch_fused", ("what DeepSpeed's FusedAdam needs beside PyTorch's fused AdamW",)


def _check_keys(data: Mapping[str, Any], zero: Mapping[str, Any], file: str) -> None:
    """Refuse keys that memcalc does not know, where they ask for something."""
    known = {"": _READ | _OF_NO_MATTER | _REFUSED.keys()}
    known["zero_optimization."] = _ZERO_READ | _ZERO_OF_NO_MATTER | _ZERO_REFUSED.keys()
    halves = {name: data.get(name) for name in ("bf16", "fp16")}
    parts = {"": data, "zero_optimization.": zero} | {
        f"{name}.": part for name, part in halves.items() if isinstance(part, dict)
    }
    for prefix, part in parts.items():
        for key, value in part.items():
            if key not in known.get(prefix, _SCALING) and value not in (None, False, AUTO, {}):
                raise UsageError(
                    f"{file}: memcalc does not know whether {prefix}{key} changes memory: "
                    "correct it, or remove it."
                )


def _left(data: Mapping[str, Any]) -> Iterator[str]:
    part = data.get("activation_checkpointing")
    if isinstance(part, dict) and any(value is True for value in part.values()):
        yield "activation_checkpointing of DeepSpeed, which a model has to call itself"


_OWN = ("offload", "offload_param", "communication_data_type", "grad_accum_dtype", "no_sync")
"""Arguments whose settings stand outside the section of ZeRO."""


def write(plan: Plan, max_grad_norm: float | None = None, config: Any = None) -> dict[str, Any]:
    """Write a plan as DeepSpeed's settings, with an optimizer that the caller makes.

    Args:
        plan: what to write.
        max_grad_norm: what the loop clips to; None: the plan's own.
        config: of the model, whose width fills in ``auto``; None: it stays.
    """
    options = dict(plan.parallel_args)
    found: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": plan.batch,
        "gradient_accumulation_steps": plan.grad_accum,
        "gradient_clipping": max_grad_norm or plan.max_grad_norm or 0.0,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": {
            "stage": ZERO_STAGES[plan.parallel or "zero2"],
            **_zero(options, config),
        },
        "steps_per_print": 1 << 30,
    }
    half = next((name for name in ("bf16", "fp16") if name in plan.precision), None)
    if half is not None:
        found[half] = {"enabled": True}
    if "communication_data_type" in options:
        found["communication_data_type"] = options["communication_data_type"]
    if "grad_accum_dtype" in options:
        found["data_types"] = {"grad_accum_dtype": options["grad_accum_dtype"]}
    return found


def _zero(options: Mapping[str, Any], config: Any) -> dict[str, Any]:
    found = {
        name: _filled(name, config) if value == AUTO and config is not None else value
        for name, value in options.items()
        if name not in _OWN
    }
    if options.get("offload") == "cpu":
        found["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    if options.get("offload_param") == "cpu":
        found["offload_param"] = {"device": "cpu", "pin_memory": True}
    return {name: value for name, value in found.items() if value is not None}


def _filled(name: str, config: Any) -> int | None:
    """Return what transformers and accelerate write for ``auto``; None: DeepSpeed's own default.

    Source: transformers 5.23, ``integrations/deepspeed.py``, ``trainer_config_finalize``;
    accelerate 1.15, ``accelerator.py``, ``_prepare_deepspeed``.
    """
    sizes = getattr(config, "hidden_sizes", None) or [getattr(config, "hidden_size", None)]
    text = getattr(config, "text_config", None)
    sizes = sizes if sizes[0] is not None else [getattr(text, "hidden_size", None)]
    if sizes[0] is None:
        return None
    width = max(sizes)
    return {
        "reduce_bucket_size": width * width,
        "stage3_prefetch_bucket_size": int(0.9 * width * width),
        "stage3_param_persistence_threshold": 10 * width,
    }.get(name)
