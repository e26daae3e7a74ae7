"""accelerate's state for one run, on a device that it may not know.

accelerate asks an environment variable for its device before it looks for one, but it refuses half
precision on devices outside of its own list. There it is told afterwards what its constructor
would have settled. Source: accelerate 1.15, ``Accelerator.__init__`` and ``PartialState``.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
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
    from accelerate.utils import DistributedType

    def forget() -> None:
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()

    told = {} if _known(device) else {_DEVICE: device}
    prepare = PartialState._prepare_backend
    if told and torch.distributed.is_initialized():
        told[_DEVICE] = f"{device}:0"
        told |= {"RANK": str(torch.distributed.get_rank()), "LOCAL_RANK": "0"}
        told["WORLD_SIZE"] = str(torch.distributed.get_world_size())
        # It looks for the group of a device that it knows; here there is one already.
        PartialState._prepare_backend = lambda *_: ("nccl", DistributedType.MULTI_GPU)
    before = dict(os.environ)
    os.environ.update(told)
    forget()
    try:
        yield
    finally:
        forget()
        PartialState._prepare_backend = prepare
        # Plugins and arguments leave theirs behind, and the next run would find them.
        for name in [name for name in os.environ if name in told or name.startswith(_TELLS)]:
            if name in before:
                os.environ[name] = before[name]
            else:
                del os.environ[name]


def sharding(job: Job) -> dict[str, Any] | None:
    """Arguments of accelerate's plugin for FSDP2; ``None``: the layout is another."""
    if job.layout.name != "fsdp2":
        return None
    named = job.options.get("transformer_layer_cls_to_wrap")
    return {
        "fsdp_version": 2,
        "auto_wrap_policy": wrapped_by(job.options),
        "min_num_params": job.options.get("min_num_params"),
        "reshard_after_forward": job.options.get("reshard_after_forward", True),
        "cpu_offload": job.options.get("offload") == "cpu",
        "cpu_ram_efficient_loading": False,
        "state_dict_type": "SHARDED_STATE_DICT",
        **({"transformer_cls_names_to_wrap": str(named).split(",")} if named else {}),
    }


def mixed(precision: Precision, device: str) -> str:
    """What to tell accelerate of the precision when it starts: ``no`` where it would refuse."""
    return _HALVES.get(precision.autocast, "no") if _known(device) else "no"  # type: ignore[arg-type]


def settle(accelerator: Any, precision: Precision, device: str) -> None:
    """Give an accelerator on a device it does not know the precision it would have on CUDA."""
    if _known(device) or precision.autocast is None:
        return
    accelerator.state._mixed_precision = _HALVES[precision.autocast]
    plugin = getattr(accelerator.state, "fsdp_plugin", None)
    if plugin is not None:
        plugin.set_mixed_precision(_HALVES[precision.autocast])
    accelerator.native_amp = True
    accelerator.scaler = precision.scaler(device)


def _known(device: str) -> bool:
    return device in ("cuda", "cpu")
