"""The private names of PyTorch that the engine uses; each says where it was read.

Read in PyTorch 2.4 to 2.14.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import torch

_memory: Any = torch.cuda.memory
_C: Any = torch._C
EVERYTHING = 10**8
"""Entries that the allocator's history may hold: more than any run of a few steps makes."""


def start_history(*, with_lines: bool) -> None:
    """Have the caching allocator write down every block (torch/cuda/memory.py).

    Args:
        with_lines: keep the Python lines that asked for a block, which costs time.
    """
    context = "alloc" if with_lines else None
    _memory._record_memory_history("all", context=context, stacks="python", max_entries=EVERYTHING)


def stop_history() -> dict[str, Any]:
    """The history so far, and the segments that there are; it is not continued."""
    snapshot: dict[str, Any] = _memory._snapshot()
    _memory._record_memory_history(None)
    return snapshot


def events_so_far(device: int) -> int:
    """Births and deaths of blocks since the process began; takes eight microseconds."""
    return _events(_C._cuda_memoryStats(device))


def peaks(device: int) -> tuple[int, dict[str, int]]:
    """Births and deaths so far, and the highest bytes since ``reset_peaks``, of one moment."""
    stats = _C._cuda_memoryStats(device)
    found = {
        name: stats.get(f"{name}_bytes", {}) for name in ("requested", "allocated", "reserved")
    }
    return _events(stats), {name: one["all"]["peak"] if one else 0 for name, one in found.items()}


def reset_peaks(device: int) -> int:
    """Let the counters of peaks begin anew; returns births and deaths until then.

    Threads of process groups free blocks at any time, and so between two calls.
    """
    while True:
        before = events_so_far(device)
        _C._cuda_resetPeakMemoryStats(device)
        if events_so_far(device) == before:
            return before


def _events(stats: dict[str, Any]) -> int:
    counted = stats.get("allocation")
    return counted["all"]["allocated"] + counted["all"]["freed"] if counted else 0


def free_cublas_workspaces() -> None:
    """Have PyTorch give back what it holds for cuBLAS (aten/src/ATen/cuda/CublasHandlePool.cpp)."""
    _C._cuda_clearCublasWorkspaces()


def set_allocator(settings: str) -> None:
    """Tell the caching allocator what ``PYTORCH_ALLOC_CONF`` says, before it is first used."""
    _memory._set_allocator_settings(settings)


def prepare_to_fork() -> None:
    """Work in one thread on the host: OpenMP's do not live on in a fork, which waits for them."""
    torch.set_num_threads(1)


def allow_cuda_after_fork() -> None:
    """Let a forked process use CUDA over the stub driver, which keeps nothing that a fork breaks.

    PyTorch refuses where the parent asked for the number of GPUs (torch/cuda/__init__.py).
    """
    torch.cuda._is_in_bad_fork = lambda: False


def profiler_events(profiler: Any) -> Any:
    """The tree of everything that a finished ``torch.profiler.profile`` saw."""
    return profiler.profiler.kineto_results.experimental_event_tree()


def storage_key(tensor: torch.Tensor) -> int:
    """A number that is one and the same for all tensors that share a storage."""
    return int(tensor.untyped_storage()._cdata)


def tensors_in(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The plain tensors that a tensor is made of: itself, or those that a subclass wraps."""
    if hasattr(tensor, "_local_tensor"):
        tensor = tensor._local_tensor
    inner = getattr(tensor, "__tensor_flatten__", None)
    if inner is not None:
        for name in inner()[0]:
            yield from tensors_in(getattr(tensor, name))
    elif tensor.layout is torch.strided:
        yield tensor
    elif tensor.layout is torch.sparse_coo:
        yield from (tensor._indices(), tensor._values())


def memory_profiler(*, with_dtypes: bool) -> Any:
    """A profiler of operators and of every block that they ask for; quiet about itself."""
    os.environ["KINETO_LOG_LEVEL"] = "99"
    profiler: Any = torch.profiler
    cpu = profiler.ProfilerActivity.CPU
    return profiler.profile(activities=[cpu], profile_memory=True, record_shapes=with_dtypes)
