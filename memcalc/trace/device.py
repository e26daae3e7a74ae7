"""A simulated GPU inside PyTorch: real code runs on it, nothing is computed or allocated.

PyTorch lets Python supply the device behind its ``PrivateUse1`` dispatch key
(torch 2.11 on).
Under ``FakeTensorMode`` tensors on that device have sizes, strides and storages but no memory,
so autograd, checkpointing, autocast and optimizers run unmodified on a machine without a GPU.
The registration is for the life of the process: callers run it in a process of its own.

A script finds ``cuda`` itself (``memcalc.script.torch_private``). An estimate does not: that takes
the place of C++ objects whose layout is read from a build's headers, so it is refused where those
are not understood and on ROCm builds, while this door is PyTorch's own and open in all of them.
The price is autocast's tables (``operators.autocast``), which CUDA's keys would bring along.
Recorder, attention, scratch and replay are the same for both.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from memcalc.trace import lost_errors, streams
from memcalc.trace.torch_private.choices import (
    let_transformers_run_eagerly,
    take_fake_tensors_for_real,
)
from memcalc.trace.torch_private.devices import register_device
from memcalc.trace.torch_private.dispatch import FakeTensorMode
from memcalc.trace.torch_private.engine import wrap_backward
from memcalc.trace.torch_private.fake_mode import SimulatedMode

SIMULATED = "simgpu"
NAME = SIMULATED
"""Where the program runs: the simulated GPU, ``cuda`` for a script that believes it has one, or
``cpu`` for an estimate of a CPU run."""


class _Module:
    """What PyTorch asks of ``torch.<device>``: one device that is always ready."""

    _initialized = True
    Stream = streams.Stream
    Event = streams.Event

    @staticmethod
    def is_initialized() -> bool:
        return True

    @staticmethod
    def is_available() -> bool:
        return True

    @staticmethod
    def current_device() -> int:
        return 0

    @staticmethod
    def device_count() -> int:
        return 1

    @staticmethod
    def _is_in_bad_fork() -> bool:
        return False

    @staticmethod
    def _lazy_init() -> None:
        return None

    @staticmethod
    def get_amp_supported_dtype() -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16, torch.float32]

    @staticmethod
    def is_bf16_supported(including_emulation: bool = True) -> bool:
        return True

    @staticmethod
    def get_rng_state(device: Any = None) -> torch.Tensor:
        # CUDA's generator state is 16 bytes in host memory.
        return torch.zeros(16, dtype=torch.uint8, device="cpu")

    @staticmethod
    @contextlib.contextmanager
    def device(index: Any) -> Iterator[None]:
        yield

    @staticmethod
    def current_stream(device: Any = None) -> streams.Stream:
        return streams.current()

    @staticmethod
    def default_stream(device: Any = None) -> streams.Stream:
        return streams.DEFAULT

    stream = staticmethod(streams.use)

    @staticmethod
    def is_current_stream_capturing() -> bool:
        return False

    @staticmethod
    def memory_stats(device: Any = None) -> dict[str, int]:
        return {"num_alloc_retries": 0}

    @staticmethod
    def _nothing(*args: Any, **kwargs: Any) -> None:
        return None

    set_rng_state = manual_seed = manual_seed_all = set_device = synchronize = empty_cache = (
        _nothing
    )


_ready = False


def register() -> None:
    """Make the simulated device known to PyTorch; later calls do nothing."""
    global _ready
    if _ready:
        return
    register_device(SIMULATED, _Module(), lost_errors.Guard())
    wrap_backward(lost_errors.raised_by)
    take_fake_tensors_for_real()
    let_transformers_run_eagerly()
    _ready = True


def use(target: str) -> None:
    """Run on the simulated GPU (``cuda``) or on fake tensors of the CPU (``cpu``)."""
    global NAME
    register()
    NAME = "cpu" if target == "cpu" else SIMULATED


@contextlib.contextmanager
def use_cuda() -> Iterator[None]:
    """Run on fake tensors whose device is ``cuda``; whoever calls has made that possible."""
    global NAME
    before, NAME = NAME, "cuda"
    try:
        yield
    finally:
        NAME = before


def keys() -> tuple[str, str]:
    """Dispatch keys of the device: with autograd, and without."""
    return ("AutogradCUDA", "CUDA") if NAME == "cuda" else ("AutogradPrivateUse1", "PrivateUse1")


def fake_mode(shapes: Any = None) -> FakeTensorMode:
    """A fresh mode under which tensors on the simulated device can be made.

    Args:
        shapes: a ``ShapeEnv`` where sizes may be symbols.
    """
    register()
    return SimulatedMode(allow_non_fake_inputs=True, shape_env=shapes)
