"""What the libraries behind loops are told: accelerate's plugins and state, DeepSpeed's settings.

Read in accelerate 1.15 (``Accelerator.__init__``, ``PartialState``) and DeepSpeed 0.19.8.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch

from memcalc.records.names import ZERO_STAGES
from memcalc.workload.job import Job
from memcalc.workload.layouts import wrapped_by

_TELLS = ("ACCELERATE_", "FSDP_")
_HALVES = {torch.float16: "fp16", torch.bfloat16: "bf16"}


@contextlib.contextmanager
def state() -> Iterator[None]:
    """Run inside with a fresh state of accelerate, which keeps one for each process."""
    from accelerate.state import AcceleratorState, GradientState

    def forget() -> None:
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()

    before = dict(os.environ)
    forget()
    try:
        yield
    finally:
        forget()
        # Plugins and arguments leave theirs behind, and the next run would find them.
        for name in [name for name in os.environ if name.startswith(_TELLS)]:
            if name in before:
                os.environ[name] = before[name]
            else:
                del os.environ[name]


def sharding(job: Job) -> dict[str, Any] | None:
    """Arguments of accelerate's plugin for FSDP; ``None``: the layout is another."""
    options = job.options
    own: dict[str, Any]
    if job.layout.name == "fsdp2":
        own = {
            "fsdp_version": 2,
            "reshard_after_forward": options.get("reshard_after_forward", True),
        }
    elif job.layout.name == "fsdp1":
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


def engine(job: Job) -> dict[str, Any] | None:
    """DeepSpeed's settings; ``None``: the layout is not one of DeepSpeed's."""
    return deepspeed_config(job) if job.layout.package == "deepspeed" else None


def follow_engine(accelerator: Any, updates: Callable[[], None]) -> None:
    """Be told before DeepSpeed's engine updates, which it does inside ``accelerator.backward``."""
    wrapped = getattr(accelerator, "deepspeed_engine_wrapped", None)
    if wrapped is None:
        return
    step = wrapped.engine.step

    def told(*args: Any, **kwargs: Any) -> Any:
        updates()
        return step(*args, **kwargs)

    wrapped.engine.step = told


def mixed(job: Job) -> str:
    """The precision as accelerate names it: ``fp16``, ``bf16`` or ``no``."""
    return _HALVES.get(job.precision.autocast, "no")  # type: ignore[arg-type]


_OWN = ("offload", "offload_param", "communication_data_type", "grad_accum_dtype")
"""Arguments whose settings stand outside the section of ZeRO."""


def deepspeed_config(job: Job) -> dict[str, Any]:
    """The settings, as they stand in a file of DeepSpeed.

    The optimizer is the caller's own, of whatever class, also where its state is on the host.
    """
    said = dict(job.options)
    found: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": job.plan.batch,
        "gradient_accumulation_steps": job.plan.grad_accum,
        "gradient_clipping": job.max_grad_norm or 0.0,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": {"stage": ZERO_STAGES[job.layout.name], **_zero(said, job.model)},
        "steps_per_print": 1 << 30,
    }
    half = _HALVES.get(job.precision.autocast or job.precision.weights)
    if half is not None:
        found[half] = {"enabled": True}
    if "communication_data_type" in said:
        found["communication_data_type"] = said["communication_data_type"]
    if "grad_accum_dtype" in said:
        found["data_types"] = {"grad_accum_dtype": said["grad_accum_dtype"]}
    return found


def _zero(said: dict[str, Any], model: torch.nn.Module) -> dict[str, Any]:
    found = {
        name: _filled(name, model) if value == "auto" else value
        for name, value in said.items()
        if name not in _OWN
    }
    if said.get("offload") == "cpu":
        found["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    if said.get("offload_param") == "cpu":
        found["offload_param"] = {"device": "cpu", "pin_memory": True}
    return {name: value for name, value in found.items() if value is not None}


def _filled(name: str, model: torch.nn.Module) -> int | None:
    """What transformers and accelerate write for ``auto``; ``None``: DeepSpeed's own default.

    Source: transformers 5.23, ``integrations/deepspeed.py``, ``trainer_config_finalize``;
    accelerate 1.15, ``accelerator.py``, ``_prepare_deepspeed``.
    """
    config: Any = getattr(model, "config", None)
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
