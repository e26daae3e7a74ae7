"""Triton: kernels are launched and do nothing; what they write to was made by PyTorch before.

Source: triton 3.6 and 3.7, ``runtime/jit.py``, ``runtime/autotuner.py``, ``runtime/driver.py`` and
``backends/nvidia/driver.py``.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from memcalc.trace import device
from memcalc.trace.torch_private.names import replaced

JIT, AUTOTUNER, DRIVER = (f"triton.runtime.{name}" for name in ("jit", "autotuner", "driver"))
"""Modules in which something is replaced."""
_FLUSHED = 256 << 20
"""Bytes that autotuning writes between two runs, so that each finds an empty L2 cache."""


class Kernel:
    """A compiled kernel that nobody can look into."""

    n_regs = n_spills = 0
    metadata = SimpleNamespace(shared=0, num_warps=4)

    def __getitem__(self, grid: Any) -> Any:
        return lambda *args, **kwargs: None


class _Driver:
    """The device as Triton asks for it."""

    def __init__(self) -> None:
        self.utils = SimpleNamespace(get_device_properties=_properties)

    def get_current_device(self) -> int:
        return 0

    def set_current_device(self, index: int) -> None:
        return None

    def get_current_stream(self, index: int) -> int:
        return 0

    def get_device_capability(self, index: int = 0) -> tuple[int, int]:
        found: tuple[int, int] = self.get_device_interface().get_device_capability()
        return found

    def get_current_target(self) -> Any:
        compiler = importlib.import_module("triton.backends.compiler")
        major, minor = self.get_device_capability()
        return compiler.GPUTarget("cuda", 10 * major + minor, 32)

    def get_active_torch_device(self) -> torch.device:
        return torch.device(device.NAME, 0)

    def get_device_interface(self) -> Any:
        return getattr(torch, device.NAME)

    def get_benchmarker(self) -> Any:
        return _timed

    def get_empty_cache_for_benchmark(self) -> torch.Tensor:
        return torch.empty(_FLUSHED // 4, dtype=torch.int, device=device.NAME)

    def clear_cache(self, cache: torch.Tensor) -> None:
        return None


def driver() -> Any:
    """What Triton asks about the device."""
    return _Driver()


def launched(assume: Callable[[str], None]) -> Callable[..., Kernel]:
    """What stands for ``JITFunction.run``.

    Args:
        assume: is told what is assumed by it.
    """

    def run(function: Any, *args: Any, grid: Any = None, **kwargs: Any) -> Kernel:
        kwargs.pop("warmup", None)
        for hook in function.pre_run_hooks:
            hook(*args, **kwargs)
        assume("Triton kernels are launched and not compiled")
        return Kernel()

    return run


def tried(tuner: Any, *args: Any, config: Any = None, **kwargs: Any) -> list[float]:
    """Stands for ``Autotuner._bench``."""
    torch.empty(_FLUSHED // 4, dtype=torch.int, device=device.NAME)
    return [1.0, 1.0, 1.0]


def forget(modules: Iterable[ModuleType]) -> None:
    """Leave behind which of their kernels' settings were tried: a fresh process tries them all."""
    kind = importlib.import_module(AUTOTUNER).Autotuner
    for module in modules:
        for value in vars(module).values():
            if isinstance(value, kind):
                value.cache.clear()


@contextlib.contextmanager
def inert(assume: Callable[[str], None]) -> Iterator[None]:
    """Let Triton launch kernels that do nothing, while the context lasts.

    Args:
        assume: is told what is assumed by it.
    """
    jit, tuner, drivers = (importlib.import_module(name) for name in (JIT, AUTOTUNER, DRIVER))
    with (
        replaced(jit.JITFunction, "run", launched(assume)),
        replaced(tuner.Autotuner, "_bench", tried),
        replaced(drivers, "_create_driver", driver),
        replaced(drivers.driver, "_default", None),
        replaced(drivers.driver, "_active", None),
    ):
        yield


def _properties(index: int) -> dict[str, int]:
    found: Any = getattr(torch, device.NAME).get_device_properties(index)
    return {
        "max_shared_mem": found.shared_memory_per_block_optin,
        "max_num_regs": found.regs_per_multiprocessor,
        "multiprocessor_count": found.multi_processor_count,
        "warpSize": found.warp_size,
        "sm_clock_rate": 1,
        "mem_clock_rate": 1,
        "mem_bus_width": 1,
    }


def _timed(kernel_call: Any, **options: Any) -> Any:
    kernel_call()
    quantiles = options.get("quantiles")
    return [1.0] * len(quantiles) if quantiles else 1.0
