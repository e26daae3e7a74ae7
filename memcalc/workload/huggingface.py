"""What the loops of accelerate and transformers' Trainer have in common: accelerate's own state.

Source: accelerate 1.15, ``Accelerator.__init__`` and ``PartialState``.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch

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
    """DeepSpeed's settings; ``None``: the layout is none of its."""
    if job.layout.package != "deepspeed":
        return None
    from memcalc.workload import deepspeed_zero

    return deepspeed_zero.config(job)


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
    """What accelerate is told of the precision: ``fp16``, ``bf16`` or ``no``."""
    return _HALVES.get(job.precision.autocast, "no")  # type: ignore[arg-type]
