"""accelerate's state for one run, on a device that it may not know.

accelerate asks an environment variable for its device before it looks for one, but it refuses half
precision on devices outside of its own list. There it is told afterwards what its constructor
would have settled. Source: accelerate 1.15, ``Accelerator.__init__`` and ``PartialState``.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch

from memcalc.workload.job import Job
from memcalc.workload.layouts import wrapped_by
from memcalc.workload.precision import Precision

_DEVICE = "ACCELERATE_TORCH_DEVICE"
_TELLS = ("ACCELERATE_", "FSDP_")
_HALVES = {torch.float16: "fp16", torch.bfloat16: "bf16"}


@contextlib.contextmanager
def state(device: str) -> Iterator[None]:
    """Run inside with a state of accelerate's own for a device; it keeps one for each process."""
    from accelerate.state import AcceleratorState, GradientState, PartialState
    from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin

    def forget() -> None:
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()

    told = {} if _known(device) else {_DEVICE: device}
    prepare, made = PartialState._prepare_backend, FullyShardedDataParallelPlugin.__post_init__
    if told and torch.distributed.is_initialized():
        told[_DEVICE] = f"{device}:0"
        told |= {"RANK": str(torch.distributed.get_rank()), "LOCAL_RANK": "0"}
        told["WORLD_SIZE"] = str(torch.distributed.get_world_size())
        # It looks for the group of a device that it knows; here there is one already.
        PartialState._prepare_backend = lambda *_: ("nccl", DistributedType.MULTI_GPU)
    if told:
        FullyShardedDataParallelPlugin.__post_init__ = _anywhere(made)
    before = dict(os.environ)
    os.environ.update(told)
    forget()
    try:
        yield
    finally:
        forget()
        PartialState._prepare_backend = prepare
        FullyShardedDataParallelPlugin.__post_init__ = made
        # Plugins and arguments leave theirs behind, and the next run would find them.
        for name in [name for name in os.environ if name in told or name.startswith(_TELLS)]:
            if name in before:
                os.environ[name] = before[name]
            else:
                del os.environ[name]


def _anywhere(made: Callable[[Any], None]) -> Callable[[Any], None]:
    """The first FSDP's plugin where it would find no device to make a meta model's weights on."""

    def make(plugin: Any) -> None:
        synchronises, plugin.sync_module_states = plugin.sync_module_states, False
        made(plugin)
        if plugin.fsdp_version == 1:
            plugin.sync_module_states = synchronises

    return make


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


def mixed(precision: Precision, device: str) -> str:
    """What to tell accelerate of the precision when it starts: ``no`` where it would refuse."""
    return _HALVES.get(precision.autocast, "no") if _known(device) else "no"  # type: ignore[arg-type]


def settle(accelerator: Any, precision: Precision, device: str) -> None:
    """Give an accelerator on a device it does not know the precision it would have on CUDA."""
    if _known(device) or precision.autocast is None or accelerator.state.deepspeed_plugin:
        return
    accelerator.state._mixed_precision = _HALVES[precision.autocast]
    plugin = getattr(accelerator.state, "fsdp_plugin", None)
    if plugin is not None:
        plugin.set_mixed_precision(_HALVES[precision.autocast])
    accelerator.native_amp = True
    accelerator.scaler = _scaler(accelerator, precision, device)


def _scaler(accelerator: Any, precision: Precision, device: str) -> Any:
    """As accelerate chooses it: the first FSDP has a scaler of its own, which ranks agree by.

    Source: accelerate 1.15, ``utils/modeling.py``, ``get_grad_scaler``.
    """
    from accelerate.utils import DistributedType

    if accelerator.distributed_type != DistributedType.FSDP or accelerator.is_fsdp2:
        return precision.scaler(device)
    from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

    return ShardedGradScaler(device) if precision.scaled else None


def _known(device: str) -> bool:
    return device in ("cuda", "cpu")
