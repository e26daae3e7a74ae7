"""The JSON that configures DeepSpeed, with the ``auto`` of transformers and accelerate.

Source: DeepSpeed 0.19.8, ``runtime/config.py``, ``runtime/zero/config.py`` and
``runtime/precision_config.py``; transformers 5.23, ``integrations/deepspeed.py``.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from memcalc.dialects.format import read_format
from memcalc.dialects.recipe import Keys, Recipe
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
_DTYPES = ("communication_data_type", "grad_accum_dtype")
_NUMBERS_3 = (
    *("stage3_max_live_parameters", "stage3_max_reuse_distance"),
    *("stage3_module_granularity_threshold", "stage3_param_persistence_threshold"),
    *("stage3_prefetch_bucket_size", "zero_hpz_partition_size"),
)
ARGUMENTS = (*_NUMBERS, *_SWITCHES, *_DTYPES, "offload")
"""Arguments of a layout of any stage; ``offload=cpu`` keeps the optimizer's state on the host."""
ARGUMENTS_3 = (*_NUMBERS_3, "offload_param")
"""Arguments of stage 3 alone."""
_FILLED = (
    "reduce_bucket_size",
    "stage3_param_persistence_threshold",
    "stage3_prefetch_bucket_size",
)
"""What transformers and accelerate fill in by the model's width; ``auto`` elsewhere is DeepSpeed's
own default."""
_OFF: tuple[Any, ...] = (None, False, AUTO, {})


def is_one(data: Mapping[str, Any]) -> bool:
    """Return True if a table has the keys of DeepSpeed's JSON."""
    known = ("train_micro_batch_size_per_gpu", "train_batch_size", "bf16", "fp16", "optimizer")
    return "zero_optimization" in data or (
        any(isinstance(data.get(key), dict) for key in known[2:]) and known[0] in data
    )


def read(data: Mapping[str, Any], file: str, given: Mapping[str, Any]) -> Recipe:
    """Read DeepSpeed's JSON as settings of a plan; ``given``: devices and optimizer.

    Raises:
        UsageError: DeepSpeed would not take it, or it asks for what memcalc does not answer.
    """
    form = read_format("deepspeed")
    asked = {
        key: value
        for key, value in data.items()
        if value not in _OFF and (key not in form.reasons or _is_on(value))
    }
    keys = Keys(asked, file, NAME, form)
    zero = keys.section("zero_optimization")
    stage = zero.get("stage") or 0
    if stage not in (1, 2, 3) or isinstance(stage, bool):
        raise UsageError(
            f"{file}: ZeRO stage {stage} is not supported: memcalc supports stages 1, 2 and 3, and "
            f"plain data parallelism as --parallel ddp."
        )
    # In which dtypes gradients are sent and summed.
    dtypes = {
        "communication_data_type": keys.get("communication_data_type"),
        "grad_accum_dtype": keys.section("data_types").data.get("grad_accum_dtype"),
    }
    told = {key: str(dtype) for key, dtype in dtypes.items() if dtype not in (None, AUTO)}
    arguments = {**_read_arguments(zero, stage), **told}
    settings: dict[str, Any] = {"parallel": _LAYOUTS[stage]}
    if arguments:
        settings["parallel_args"] = arguments
    settings |= _read_precision(keys) | _read_batches(keys, given)
    settings["max_grad_norm"] = keys.get("gradient_clipping") or None
    parts = keys.get("activation_checkpointing")
    if isinstance(parts, dict) and True in parts.values():
        keys.unread.append(
            "activation_checkpointing of DeepSpeed, which a model has to call itself"
        )
    optimizer, note = _read_optimizer(keys, "offload" in arguments)
    if optimizer is not None and given.get("optim") is None:
        settings["optim"] = optimizer
        keys.unread += note
    _check_other_keys(zero)
    return keys.recipe(settings)


def _check_other_keys(keys: Keys) -> None:
    """Raise UsageError for unknown keys with a value that turns something on."""
    keys.view({key: value for key, value in keys.data.items() if value not in _OFF}).finish()


def _is_on(value: Any) -> bool:
    if isinstance(value, dict):
        sizes = [value.get(key) for key in ("autotp_size", "tp_size") if value.get(key)]
        return (
            value.get("enabled") not in (None, False)
            or bool(sizes)
            or any(_is_on(one) for one in value.values() if isinstance(one, dict))
        )
    return bool(value)


def _read_arguments(zero: Keys, stage: int) -> dict[str, Any]:
    """Return ZeRO's buffer sizes, switches and offloading as the layout's arguments."""
    found: dict[str, Any] = {}
    for key in (*_NUMBERS, *_NUMBERS_3):
        value = zero.get(key)
        if key in _NUMBERS_3 and stage != 3:
            continue
        if value == AUTO and key in _FILLED:
            found[key] = AUTO
        elif value not in (None, AUTO):
            found[key] = 0 if value == 0 else zero.count(key)
    for key in _SWITCHES:
        if zero.get(key) not in (None, AUTO):
            found[key] = zero.flag(key)
    return found | dict.fromkeys(_find_offloads(zero, stage), "cpu")


def _find_offloads(zero: Keys, stage: int) -> Iterator[str]:
    """Yield ``offload`` and ``offload_param`` where ZeRO offloads these to the CPU."""
    for name, key, old in (
        ("offload", "offload_optimizer", "cpu_offload"),
        ("offload_param", "offload_param", "cpu_offload_param"),
    ):
        place = zero.section(key).data
        device = str(place.get("device") or "none").lower()
        if zero.get(old) and device == "none":
            device = "cpu"
        if device not in ("none", "cpu", AUTO):
            raise UsageError(
                f"{zero.file}: {key} to {device} is not supported: memcalc supports device cpu."
            )
        if place.get("ratio") not in (None, 1, 1.0, AUTO):
            raise UsageError(
                f"{zero.file}: {key} of a part (ratio {place['ratio']}) is not supported: memcalc "
                f"supports ratio 1."
            )
        if device == "cpu" and (name == "offload" or stage == 3):
            yield name


def _read_precision(keys: Keys) -> dict[str, Any]:
    on, left = [], False
    for name, section in (("bf16", "bf16" if "bf16" in keys.data else "bfloat16"), ("fp16",) * 2):
        half = keys.section(section)
        left = left or half.get("enabled") == AUTO
        on += [f"amp-{name}"] if half.get("enabled") != AUTO and half.flag("enabled") else []
        _check_other_keys(half)
    if len(on) > 1:
        raise UsageError(f"{keys.file}: bf16 and fp16 are both enabled: disable one.")
    if on:
        return {"precision": on[0]}
    return {} if left else {"precision": "fp32"}


def _read_batches(keys: Keys, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return micro-batch and accumulation steps, computed from the whole batch if missing."""
    whole, micro, steps = map(keys.count, (
        "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps",
    ))  # fmt: skip
    world = given.get("devices") or 1
    if whole is not None:
        rest = micro or steps or 1
        other, left = divmod(whole, world * rest)
        if left or not other or (micro and steps and other != steps):
            raise UsageError(
                f"{keys.file}: train_batch_size {whole} is not made of {world} GPUs with a "
                f"micro-batch of {micro or 'any size'} and {steps or 'any number of'} accumulated "
                "steps: say how many GPUs with --devices, or correct one."
            )
        micro, steps = (micro, other) if micro else (other, rest)
    return {"batch": micro, "grad_accum": steps}


def _read_optimizer(keys: Keys, offloaded: bool) -> tuple[str | None, tuple[str, ...]]:
    """Return the plan's optimizer for DeepSpeed's, and notes on what is not counted of it."""
    asked = keys.section("optimizer").data
    kind = str(asked.get("type") or "").lower()
    if not kind:
        return None, ()
    if kind not in ("adam", "adamw"):
        raise UsageError(
            f"{keys.file}: optimizer {asked['type']} is DeepSpeed's own kernel, which memcalc does "
            "not know: name one that is handed to deepspeed.initialize, such as --optim adamw."
        )
    params = asked.get("params")
    if offloaded or (isinstance(params, dict) and params.get("torch_adam")):
        return "adamw", ()
    return "adamw_torch_fused", ("what DeepSpeed's FusedAdam needs beside PyTorch's fused AdamW",)


_OWN = ("offload", "offload_param", *_DTYPES, "no_sync")
"""Arguments whose settings stand outside the section of ZeRO."""


def write(plan: Plan, max_grad_norm: float | None = None, config: Any = None) -> dict[str, Any]:
    """Return a plan as DeepSpeed's JSON settings, with an optimizer that the caller makes.

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
            **_write_zero(options, config),
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


def _write_zero(options: Mapping[str, Any], config: Any) -> dict[str, Any]:
    found = {
        name: _fill_auto(name, config) if value == AUTO and config is not None else value
        for name, value in options.items()
        if name not in _OWN
    }
    if options.get("offload") == "cpu":
        found["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    if options.get("offload_param") == "cpu":
        found["offload_param"] = {"device": "cpu", "pin_memory": True}
    return {name: value for name, value in found.items() if value is not None}


def _fill_auto(name: str, config: Any) -> int | None:
    """Return the number that transformers and accelerate fill in for ``auto``, or None.

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
