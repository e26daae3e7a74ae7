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

from memcalc.workload.precision import Precision

_DEVICE = "ACCELERATE_TORCH_DEVICE"
_HALVES = {torch.float16: "fp16", torch.bfloat16: "bf16"}


@contextlib.contextmanager
def state(device: str) -> Iterator[None]:
    """Run inside with a state of accelerate's own for a device; it keeps one for each process."""
    from accelerate.state import AcceleratorState, GradientState

    def forget() -> None:
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()

    before = os.environ.get(_DEVICE)
    if not _known(device):
        os.environ[_DEVICE] = device
    forget()
    try:
        yield
    finally:
        forget()
        os.environ.pop(_DEVICE, None)
        if before is not None:
            os.environ[_DEVICE] = before


def mixed(precision: Precision, device: str) -> str:
    """What to tell accelerate of the precision when it starts: ``no`` where it would refuse."""
    return _HALVES.get(precision.autocast, "no") if _known(device) else "no"  # type: ignore[arg-type]


def settle(accelerator: Any, precision: Precision, device: str) -> None:
    """Give an accelerator on a device it does not know the precision it would have on CUDA."""
    if _known(device) or precision.autocast is None:
        return
    accelerator.state._mixed_precision = _HALVES[precision.autocast]
    accelerator.native_amp = True
    accelerator.scaler = precision.scaler(device)


def _known(device: str) -> bool:
    return device in ("cuda", "cpu")
