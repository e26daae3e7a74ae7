"""Reads settings, versions, counters and out-of-memory errors of the training process."""

import contextlib
import os
import re
import resource
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from memcalc.engine.host_view import tensors_in
from memcalc.records.measurement import OutOfMemory, StateReading
from memcalc.records.trace import Phase
from memcalc.units import parse_bytes
from memcalc.version import find_version
from memcalc.workload.wrapped_tensors import plain

_SETTINGS = (
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_MODULE_LOADING",
    "CUDA_VISIBLE_DEVICES",
    "TORCH_CUDNN_SDPA_DEPRIORITIZED",
)


def read_device() -> dict[str, Any]:
    """Return the bytes that CUDA and PyTorch's allocator hold now; empty before CUDA starts."""
    if not (torch.cuda.is_available() and torch.cuda.is_initialized()):
        return {}
    found: dict[str, Any] = {"reserved": torch.cuda.memory_reserved()}
    with contextlib.suppress(RuntimeError):
        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info()
        found |= {"cuda_used": total - free, "cuda_total": total}
    uuid = getattr(torch.cuda.get_device_properties(torch.cuda.current_device()), "uuid", None)
    return {**found, "uuid": str(uuid)} if uuid is not None else found


def fields_of_process(*, cuda: bool) -> dict[str, Any]:
    """Return the fields of a ``Measurement`` about this process, its device and its allocator."""
    stats = torch.cuda.memory_stats() if cuda else {}
    return {
        "device": torch.cuda.get_device_name() if cuda else "cpu",
        "retries": int(stats.get("num_alloc_retries", 0)) if cuda else None,
        "ooms": int(stats.get("num_ooms", 0)) if cuda else None,
        "peak_rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "versions": versions(),
        "settings": {name: os.environ[name] for name in _SETTINGS if name in os.environ},
    }


def versions() -> dict[str, str]:
    """Return the versions of PyTorch, CUDA and packages, and the GPU's compute capability."""
    found: dict[str, Any] = {"torch": str(torch.__version__), "cuda": torch.version.cuda}
    for package in ("transformers", "bitsandbytes", "flash-attn", "memcalc"):
        found[package] = find_version(package)
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        major, minor = torch.cuda.get_device_capability()
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        found["capability"] = f"{major}.{minor}"
        found["multiprocessors"] = str(properties.multi_processor_count)
    return {name: str(value) for name, value in found.items() if value is not None}


def read_state(optimizer: torch.optim.Optimizer) -> StateReading:
    """Return the bytes of an optimizer's state by place (device, host, managed).

    A storage that tensors share counts once, except in the sums of PyTorch's tutorial.
    """
    bytes_at = {"device": 0, "host": 0, "managed": 0}
    seen: set[int] = set()
    elements = tutorial = 0
    on_gpu = any(
        p.device.type != "cpu" for group in optimizer.param_groups for p in group["params"]
    )
    states = tensors_in(optimizer.state.values())
    for tensor in (part for one in states for part in plain(one)):
        elements += tensor.numel()
        tutorial += tensor.numel() * tensor.element_size()
        storage = tensor.untyped_storage()
        if storage._cdata in seen:
            continue
        seen.add(storage._cdata)
        bytes_at[_storage_kind(tensor, on_gpu)] += storage.nbytes()
    return StateReading(tutorial_elements=elements, tutorial_bytes=tutorial, **bytes_at)


def storage_bytes(tensors: Iterable[torch.Tensor | None]) -> int:
    """Return the bytes of the storages of some tensors; a storage that tensors share counts once.

    None among the tensors is skipped.
    """
    seen: dict[int, int] = {}
    for outer in tensors:
        if outer is not None:
            for tensor in plain(outer):
                storage = tensor.untyped_storage()
                seen[storage._cdata] = storage.nbytes()
    return sum(seen.values())


def _storage_kind(tensor: torch.Tensor, on_gpu: bool) -> str:
    """Return where an optimizer state's storage lies: managed, device or host."""
    if getattr(tensor, "is_paged", False):
        return "managed"
    if tensor.device.type != "cpu":
        return "device"
    # A CPU run's state is on its device, except for step counters.
    return "host" if on_gpu or tensor.dim() == 0 else "device"


_ASKED = re.compile(r"[Tt]ried to allocate ([\d.]+ (?:[KMGT]?i?B|bytes))")
"""What PyTorch's allocators say: of CUDA, and of main memory."""
_LIBRARIES = (
    "out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "can't allocate memory",
)
"""What PyTorch's other errors say when memory ran out below its allocator."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if an error says that memory ran out."""
    if isinstance(error, torch.cuda.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error) for word in _LIBRARIES)


def read_failure(
    error: BaseException, step: int, phase: Phase, refused: Sequence[Sequence[int]]
) -> OutOfMemory:
    """Return the figures of an out-of-memory error; unknown figures are None.

    ``refused``: for each request that PyTorch's CUDA allocator refused, the bytes that were
    requested, of the device, and free.
    """
    text = " ".join(str(error).split())
    found = _ASKED.search(text)
    said = parse_bytes(found[1].replace("bytes", "B")) if found is not None else None
    asked, total, free = refused[-1] if refused else (said, None, None)
    if free is None and torch.cuda.is_initialized():
        # A device that failed may refuse to answer, too.
        with contextlib.suppress(RuntimeError):
            free, total = torch.cuda.mem_get_info()
    return OutOfMemory(
        step=step, phase=phase, asked=asked, free=free, total=total, message=text[:300]
    )
