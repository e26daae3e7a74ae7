"""The private names of PyTorch that the engine uses; each says where it was read.

Read in PyTorch 2.4 to 2.14.
"""

from __future__ import annotations

import ctypes
import functools
import inspect
import os
import sys
from collections.abc import Iterator
from typing import Any

import torch

_memory: Any = torch.cuda.memory
_C: Any = torch._C
_record_history, _snapshot = _memory._record_memory_history, _memory._snapshot
"""PyTorch's own: a program that is followed does not switch the history off."""
EVERYTHING = 10**8
"""Entries that the allocator's history may hold: more than any run of a few steps makes."""


def start_history(*, with_lines: bool) -> None:
    """Have the caching allocator write down every block (torch/cuda/memory.py).

    Args:
        with_lines: keep the Python lines that asked for a block, which costs time.
    """
    context = "alloc" if with_lines else None
    _record_history("all", context=context, stacks="python", max_entries=EVERYTHING)


def go_on_without_lines() -> None:
    """Keep the history, and no more lines; releases that would forget it go on as they are."""
    if "clear_history" in inspect.signature(_record_history).parameters:
        _record_history("all", context=None, max_entries=EVERYTHING)


def stop_history() -> dict[str, Any]:
    """The history so far, and the segments that there are; it is not continued.

    For lines of code PyTorch asks the compiler for those of code that it generated, and so imports
    it, which takes half a second; where it is not imported it has generated none.
    """
    compiled = "torch._inductor" in sys.modules
    if not compiled:
        vars(torch)["_inductor"] = None
    try:
        snapshot: dict[str, Any] = _snapshot()
    finally:
        if not compiled:
            del vars(torch)["_inductor"]
    _record_history(None)
    return snapshot


def private_pools(snapshot: dict[str, Any], device: int) -> dict[int, int]:
    """Bytes of a GPU in private pools, such as those of CUDA graphs, by the stream they are for."""
    found: dict[int, int] = {}
    for segment in snapshot["segments"]:
        if segment["device"] == device and any(segment.get("segment_pool_id", ())):
            stream = segment["stream"]
            found[stream] = found.get(stream, 0) + segment["total_size"]
    return found


def resume_history(device: int) -> list[dict[str, Any]]:
    """Keep a new history; returns the blocks that are alive, as entries of one."""
    living = []
    for segment in _memory._snapshot()["segments"]:
        address = segment["address"]
        for block in segment["blocks"] if segment["device"] == device else ():
            if block["state"] == "active_allocated":
                size, stream = block["requested_size"], segment["stream"]
                living.append({"action": "alloc", "addr": address, "size": size, "stream": stream})
            address += block["size"]
    start_history(with_lines=False)
    return living


def events_so_far(device: int) -> int:
    """Births and deaths of blocks since the process began.

    The stub driver counts them; on a GPU the allocator is asked, which takes eight microseconds.
    """
    moments = _moments()
    return _events(_C._cuda_memoryStats(device)) if moments is None else int(moments[device])


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


@functools.cache
def _moments() -> Any:
    """The stub driver's counts of each GPU; ``None``: there is NVIDIA's driver."""
    driver = ctypes.CDLL(None)
    if not hasattr(driver, "memcalc_stub_moments"):
        return None
    driver.memcalc_stub_moments.restype = ctypes.POINTER(ctypes.c_uint64)
    return driver.memcalc_stub_moments()


class _Arrival(ctypes.Structure):
    _fields_ = (("address", ctypes.c_uint64), ("moment", ctypes.c_uint64))


def arrivals() -> list[tuple[int, int]]:
    """Where something was copied to from the host, and at which moment, in order."""
    driver = ctypes.CDLL(None)
    if not hasattr(driver, "memcalc_stub_arrivals"):
        return []
    driver.memcalc_stub_arrived.restype = ctypes.c_uint64
    driver.memcalc_stub_arrivals.restype = ctypes.POINTER(_Arrival)
    kept = driver.memcalc_stub_arrivals()
    return [(kept[n].moment, kept[n].address) for n in range(driver.memcalc_stub_arrived())]


def most_of_others() -> int:
    """The most bytes of a GPU that another process over the stub driver has had; 0: none."""
    driver = ctypes.CDLL(None)
    if not hasattr(driver, "memcalc_stub_others"):
        return 0
    driver.memcalc_stub_others.restype = ctypes.c_uint64
    return int(driver.memcalc_stub_others())


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


def event_kinds() -> tuple[Any, Any]:
    """The ``tag`` of an event of that tree that is an allocation, and of an operator."""
    kinds: Any = _C._profiler._EventType
    return kinds.Allocation, kinds.TorchOp


def storage_key(tensor: torch.Tensor) -> int:
    """A number that is one and the same for all tensors that share a storage."""
    return int(tensor.untyped_storage()._cdata)


def behind(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor inside those of ``torch.func`` (torch/csrc/functorch/init.cpp)."""
    while _C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = _C._functorch.get_unwrapped(tensor)
    return tensor


def outer_leaf(tensor: torch.Tensor) -> torch.Tensor | None:
    """The same; ``None``: it was computed, and a gradient can go back through it."""
    while tensor.grad_fn is None and _C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = _C._functorch.get_unwrapped(tensor)
    return tensor if tensor.grad_fn is None else None


def memory_profiler(*, with_dtypes: bool) -> Any:
    """A profiler of operators and of every block that they ask for; quiet about itself."""
    os.environ["KINETO_LOG_LEVEL"] = "99"
    profiler: Any = torch.profiler
    cpu = profiler.ProfilerActivity.CPU
    return profiler.profile(activities=[cpu], profile_memory=True, record_shapes=with_dtypes)


def cpu_blocks(profiler: Any) -> list[tuple[int, int, int]]:
    """Births and deaths of blocks on the CPU in order: when (nanoseconds), address, bytes.

    Bytes are below zero where a block dies.
    """
    found: list[tuple[int, int, int]] = []
    waiting = list(profiler_events(profiler))
    while waiting:
        event = waiting.pop()
        kind, fields = event.typed
        if kind.name == "Allocation" and fields.device.type == "cpu":
            found.append((event.start_time_ns, fields.ptr, fields.alloc_size))
        waiting.extend(event.children)
    return sorted(found, key=lambda one: (one[0], one[2]))


def graph_breaks() -> Iterator[str]:
    """What ``torch.compile`` did not compile as one, in a sentence each (torch/_dynamo/utils.py).

    Where it was not used, nothing.
    """
    utils: Any = sys.modules.get("torch._dynamo.utils")
    if utils is None:
        return
    counters = utils.counters
    breaks = [text.partition("\n")[0] for text in counters["graph_break"]]
    if breaks:
        why = "; ".join(breaks[:3])
        yield f"torch.compile leaves graph breaks ({why}): code there runs as it is"
    skipped = counters["inductor"]["cudagraph_skips"]
    if skipped:
        yield f"{skipped} graphs run without CUDA graphs (TORCH_LOGS=perf_hints says why)"
