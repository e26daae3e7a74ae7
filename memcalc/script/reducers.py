"""DDP's reducer in a PyTorch that is built for CUDA, where there is no CUDA driver."""

from __future__ import annotations

from typing import Any

import torch

from memcalc.script.patches import Patches
from memcalc.trace.torch_private.dispatch import TorchDispatchMode

_ASKS_DEVICE = torch.ops.prim.device.default


def install(patches: Patches) -> None:
    """Reducers measure no time: their timers record events, by a runtime that is not there.

    Builds without CUDA have no timer for it (torch/csrc/distributed/c10d/reducer_cuda.cpp).
    """
    if torch.distributed.is_available():
        patches.wrap(torch.distributed, "Reducer", _untimed)


def _untimed(original: Any, parameters: Any, *args: Any, **kwargs: Any) -> Any:
    with _OfNoDevice(len(parameters) + 1):
        return original(parameters, *args, **kwargs)


class _OfNoDevice(TorchDispatchMode):
    """Where a reducer looks whether to measure time, tensors are on a device that has no timer.

    A reducer asks each parameter for its device, to see whether they are on one; then the first,
    for which it looks up a timer; then it begins to make buckets (torch/csrc/distributed/c10d/
    reducer.cpp, ``Reducer::Reducer``, 2.11 to 2.15).
    """

    def __init__(self, questions: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._questions = questions

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is _ASKS_DEVICE and self._questions:
            self._questions -= 1
            return torch.device("meta")
        return func(*args, **(kwargs or {}))
