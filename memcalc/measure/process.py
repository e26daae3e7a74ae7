"""Settings, versions and counters of the training process."""

from __future__ import annotations

import contextlib
import os
import resource
from typing import Any

import torch

from memcalc.version import installed

_SETTINGS = (
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_MODULE_LOADING",
    "CUDA_VISIBLE_DEVICES",
    "TORCH_CUDNN_SDPA_DEPRIORITIZED",
)


def facts() -> dict[str, Any]:
    """What CUDA and PyTorch's allocator hold now; empty before there is a context."""
    if not (torch.cuda.is_available() and torch.cuda.is_initialized()):
        return {}
    found: dict[str, Any] = {"reserved": torch.cuda.memory_reserved()}
    with contextlib.suppress(RuntimeError):
        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info()
        found |= {"cuda_used": total - free, "cuda_total": total}
    uuid = getattr(torch.cuda.get_device_properties(torch.cuda.current_device()), "uuid", None)
    return {**found, "uuid": str(uuid)} if uuid is not None else found


def counters() -> dict[str, int]:
    """``num_alloc_retries`` and ``num_ooms`` of the allocator."""
    stats = torch.cuda.memory_stats()
    return {name: int(stats.get(name, 0)) for name in ("num_alloc_retries", "num_ooms")}


def peak_rss() -> int:
    """Largest resident set of this process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def settings() -> dict[str, str]:
    """Environment variables that change memory and are set."""
    return {name: os.environ[name] for name in _SETTINGS if name in os.environ}


def versions() -> dict[str, str]:
    """Versions of the code that ran, and of the device."""
    found: dict[str, Any] = {"torch": str(torch.__version__), "cuda": torch.version.cuda}
    for package in ("transformers", "bitsandbytes", "flash-attn", "memcalc"):
        found[package] = installed(package)
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        major, minor = torch.cuda.get_device_capability()
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        found["capability"] = f"{major}.{minor}"
        found["multiprocessors"] = str(properties.multi_processor_count)
    return {name: str(value) for name, value in found.items() if value is not None}
