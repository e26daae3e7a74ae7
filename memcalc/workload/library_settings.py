"""Settings of the libraries behind loops: accelerate's plugins and state, DeepSpeed's file.

Read in accelerate 1.15 (``Accelerator.__init__``, ``PartialState``) and DeepSpeed 0.19.8.
"""

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import torch

from memcalc.dialects import deepspeed, fsdp
from memcalc.workload.job import Job

_VARIABLES = ("ACCELERATE_", "FSDP_")
_HALVES = {torch.float16: "fp16", torch.bfloat16: "bf16"}


@contextlib.contextmanager
def fresh_state() -> Iterator[None]:
    """Reset accelerate's global state and environment variables around the block."""
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
        for name in [name for name in os.environ if name.startswith(_VARIABLES)]:
            if name in before:
                os.environ[name] = before[name]
            else:
                del os.environ[name]


def sharding(job: Job) -> dict[str, Any] | None:
    """Return the arguments of accelerate's FSDP plugin, or None for another layout."""
    return fsdp.plugin(job.layout.name, job.options)


def engine(job: Job) -> dict[str, Any] | None:
    """Return a job's DeepSpeed configuration, or None for another layout."""
    if job.layout.package != "deepspeed":
        return None
    return deepspeed.write(job.plan, job.max_grad_norm, getattr(job.model, "config", object()))


def mixed_precision(job: Job) -> str:
    """Return accelerate's name of the precision: ``fp16``, ``bf16`` or ``no``."""
    return _HALVES.get(job.precision.autocast, "no")  # type: ignore[arg-type]
