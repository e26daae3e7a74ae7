"""Triton: kernels are launched and do nothing; what they write to was made by PyTorch before.

Source: triton 3.6 and 3.7, ``runtime/jit.py``, ``runtime/autotuner.py``, ``runtime/driver.py`` and
``backends/nvidia/driver.py``.
"""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from memcalc.script.patches import Patches
from memcalc.script.recorder import ScriptRecorder

_FLUSHED = 256 << 20
"""Bytes that autotuning writes between two runs, so that each finds an empty L2 cache."""


class _Driver:
    """The device as Triton asks for it."""

    def __init__(self) -> None:
        self.utils = SimpleNamespace(get_device_properties=_properties)

    def get_current_device(self) -> int:
        return 0

    def set_current_device(self, device: int) -> None:
        return None

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_device_capability(self, device: int = 0) -> tuple[int, int]:
        return torch.cuda.get_device_capability()

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        major, minor = torch.cuda.get_device_capability()
        return GPUTarget("cuda", 10 * major + minor, 32)

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cuda", 0)

    def get_device_interface(self) -> Any:
        return torch.cuda

    def get_benchmarker(self) -> Any:
        return _bench

    def get_empty_cache_for_benchmark(self) -> torch.Tensor:
        return torch.empty(_FLUSHED // 4, dtype=torch.int, device="cuda")

    def clear_cache(self, cache: torch.Tensor) -> None:
        return None


class _Kernel:
    """A compiled kernel that nobody can look into."""

    n_regs = n_spills = 0
    metadata = SimpleNamespace(shared=0, num_warps=4)

    def __getitem__(self, grid: Any) -> Any:
        return lambda *args, **kwargs: None


def install(patches: Patches, recorder: ScriptRecorder) -> None:
    """Let Triton launch kernels that do nothing."""

    def run(original: Any, function: Any, *args: Any, grid: Any = None, **kwargs: Any) -> _Kernel:
        kwargs.pop("warmup", None)
        for hook in function.pre_run_hooks:
            hook(*args, **kwargs)
        recorder.assumptions["Triton kernels are launched and not compiled"] = None
        return _Kernel()

    def bench(
        original: Any, tuner: Any, *args: Any, config: Any = None, **kwargs: Any
    ) -> list[float]:
        torch.empty(_FLUSHED // 4, dtype=torch.int, device="cuda")
        return [1.0, 1.0, 1.0]

    def jit(module: ModuleType) -> None:
        patches.wrap(module.JITFunction, "run", run)

    def tune(module: ModuleType) -> None:
        patches.wrap(module.Autotuner, "_bench", bench)

    def drive(module: ModuleType) -> None:
        patches.set(module, "_create_driver", _Driver)
        patches.set(module.driver, "_default", None)
        patches.set(module.driver, "_active", None)

    patches.when_imported("triton.runtime.jit", jit)
    patches.when_imported("triton.runtime.autotuner", tune)
    patches.when_imported("triton.runtime.driver", drive)


def _properties(device: int) -> dict[str, int]:
    found: Any = torch.cuda.get_device_properties(device)
    return {
        "max_shared_mem": found.shared_memory_per_block_optin,
        "max_num_regs": found.regs_per_multiprocessor,
        "multiprocessor_count": found.multi_processor_count,
        "warpSize": found.warp_size,
        "sm_clock_rate": 1,
        "mem_clock_rate": 1,
        "mem_bus_width": 1,
    }


def _bench(kernel_call: Any, **options: Any) -> Any:
    kernel_call()
    quantiles = options.get("quantiles")
    return [1.0] * len(quantiles) if quantiles else 1.0
