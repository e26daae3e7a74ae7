"""Answers for the functions of ``torch._C`` that ``torch.cuda`` calls.

PyTorch's own Python code in ``torch/cuda`` and ``torch/accelerator`` runs over them, so what a
script sees of its GPU has PyTorch's own shape. Read in PyTorch 2.11 and 2.13.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from memcalc.allocator.constants import UNLIMITED
from memcalc.script import libraries, nvml, scattered, unserved
from memcalc.script.gpu import GpuMemory
from memcalc.script.inert import Inert
from memcalc.script.patches import Patches
from memcalc.script.streams import (
    CudaGenerator,
    Event,
    Generator,
    Stream,
    StreamContext,
    set_stream,
)
from memcalc.script.visible import Each, Gpus
from memcalc.trace import streams
from memcalc.trace.properties import Properties

_VERSION = (13, 0)
"""Of CUDA, where the build of PyTorch has none."""
_NUMBER = 1000 * _VERSION[0] + 10 * _VERSION[1]
_NCCL = (2, 29, 7)
"""The version that PyTorch 2.13 is built with for CUDA 13."""
_NCCL_UNIQUE_ID = 128
"""Bytes of ``ncclUniqueId`` (nccl.h)."""


class _Runtime:
    """Stands for ``torch.cuda.cudart()``: every call succeeds."""

    class cudaError:  # noqa: N801
        success = 0

    def __init__(self, memory: GpuMemory) -> None:
        self._memory = memory

    def cudaMemGetInfo(self, device: int = 0) -> tuple[int, int]:  # noqa: N802
        return self._memory.one(device).free, self._memory.total

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cuda"):
            raise AttributeError(name)
        return lambda *args, **kwargs: 0


def install(
    patches: Patches,
    memory: GpuMemory,
    properties: Properties,
    say: Callable[[str], None],
    by_nccl: Callable[[int], None],
) -> None:
    """Let ``torch.cuda`` and NVML find these GPUs."""
    for name, function in _functions(memory).items():
        patches.set(torch._C, name, function)
    unserved.install(patches)
    cuda = torch.cuda

    def of_device(index: Any) -> Properties:
        memory.gpus.there(int(index))
        return properties

    given = {
        "_initialized": True,
        "_cudart": _Runtime(memory),
        # A parent that asked for GPUs before it forked is no hindrance.
        "_is_in_bad_fork": _always(False),
        "device_count": lambda: memory.gpus.count,
        "_device_count_nvml": lambda: -1,
        "_exchange_device": memory.gpus.exchange,
        "_maybe_exchange_device": memory.gpus.exchange,
        "_get_device_properties": of_device,
        "_CudaDeviceProperties": Properties,
        "default_generators": Each(memory.gpus, CudaGenerator),
        "Stream": Stream,
        "Event": Event,
        "ExternalStream": Stream,
        "set_stream": set_stream,
        "StreamContext": StreamContext,
        "stream": StreamContext,
        "has_magma": True,
    }
    for name, value in given.items():
        patches.set(cuda, name, value)
    scattered.install(patches, memory.gpus, by_nccl)
    for name in ("Stream", "Event", "ExternalStream"):
        patches.set(cuda.streams, name, given[name])
    for name, value in (("Generator", Generator), ("Stream", Stream), ("Event", Event)):
        patches.set(torch, name, value)
    for name in ("is_built", "is_flash_attention_available"):
        patches.set(torch.backends.cuda, name, lambda: True)
    if torch.version.cuda is None:
        patches.set(torch.version, "cuda", ".".join(map(str, _VERSION)))
    # It names ranges of time for a profiler that is not there.
    patches.set(cuda.nvtx, "_nvtx", Inert())
    common = torch.cuda.amp.common
    patches.set(common, "amp_definitely_not_available", lambda: False)
    _install_accelerator(patches, memory.gpus)
    libraries.install(patches, say)
    _install_nvml(patches, memory, properties, say)


def _install_nvml(
    patches: Patches, memory: GpuMemory, properties: Properties, say: Callable[[str], None]
) -> None:
    patches.wrap(
        torch.cuda,
        "_get_nvml_device_index",
        lambda original, device: memory.gpus.index_of(device),
        also=(torch.cuda.memory,),
    )

    def free(index: int) -> int:
        # Before it first uses a GPU a process has no context there.
        return memory.one(index).free if index in memory.used else memory.total

    card = nvml.Card(
        name=properties.name,
        capability=(properties.major, properties.minor),
        total=memory.total,
        kept=memory.kept,
        free=free,
        cuda=_NUMBER,
        gpus=memory.gpus.usable,
    )
    nvml.install(patches, card, say)


def _functions(memory: GpuMemory) -> dict[str, Any]:
    def current(device: int = 0) -> tuple[int, int, int]:
        return streams.current(device).stream_id, device, 1

    zero, nothing, gpus = _always(0), _always(None), memory.gpus
    return {
        "_cuda_init": nothing,
        "_cuda_getDeviceCount": lambda: gpus.count,
        "_cuda_getDevice": gpus.current,
        "_cuda_setDevice": gpus.use,
        "_cuda_exchangeDevice": gpus.exchange,
        "_cuda_maybeExchangeDevice": gpus.exchange,
        "_accelerator_exchangeDevice": gpus.exchange,
        "_accelerator_maybeExchangeDevice": gpus.exchange,
        "_cuda_isInBadFork": _always(False),
        "_cuda_synchronize": nothing,
        "_cuda_ipc_collect": nothing,
        "_cuda_sleep": nothing,
        "_cuda_getArchFlags": _always("sm_75 sm_80 sm_86 sm_90 sm_100 sm_120"),
        "_cuda_getCompiledVersion": _always(_NUMBER),
        "_cuda_canDeviceAccessPeer": lambda device, peer: device != peer,
        "_cuda_getCurrentStream": current,
        "_cuda_getDefaultStream": lambda device=0: (0, device, 1),
        "_cuda_getCurrentRawStream": lambda device=0: streams.current(device).stream_id,
        "_cuda_getCurrentBlasHandle": zero,
        "_cuda_getCurrentSolverHandle": zero,
        **libraries.held("_cuda_{}_sync_debug_mode", 0),
        **_of_memory(memory),
        **libraries.held("_cuda_{}MemoryMetadata", ""),
        "_nccl_version": _always(_NCCL[0] << 32 | _NCCL[1] << 16 | _NCCL[2]),
        "_nccl_version_suffix": _always(b""),
        "_nccl_unique_id": _always(bytes(_NCCL_UNIQUE_ID)),
    }


def _of_memory(memory: GpuMemory) -> dict[str, Any]:
    def stats(device: int = 0) -> dict[str, Any]:
        one = memory.one(device)
        split = one.model.settings.max_split
        named = {"max_split_size": -1 if split == UNLIMITED else split, "num_oom_rejections": 0}
        return _nested({**one.model.memory_stats(), **named})

    def snapshot(*_: Any) -> dict[str, Any]:
        each = [memory.one(index) for index in range(memory.gpus.usable)]
        return {
            "segments": [segment for one in each for segment in one.segments()],
            "device_traces": [[] for _ in each],
            "external_annotations": [],
            "allocator_settings": {},
        }

    nothing = _always(None)
    return {
        "_cuda_memoryStats": stats,
        "_cuda_resetPeakMemoryStats": lambda device=0: memory.one(device).model.reset_peaks(),
        "_cuda_resetAccumulatedMemoryStats": lambda device=0: memory.one(device).model.reset_sums(),
        "_cuda_emptyCache": memory.empty_cache,
        "_cuda_setMemoryFraction": lambda part, device=0: memory.one(device).set_fraction(part),
        "_cuda_getMemoryFraction": lambda device=0: memory.one(device).fraction,
        "_cuda_memorySnapshot": snapshot,
        "_cuda_record_memory_history": nothing,
        "_cuda_record_memory_history_legacy": nothing,
        "_cuda_recordMemoryHistory": nothing,
        "_cuda_attach_out_of_memory_observer": nothing,
        "_cuda_getAllocatorBackend": _always("native"),
        "_cuda_hostMemoryStats": _always({}),
        "_cuda_resetPeakHostMemoryStats": nothing,
        "_cuda_resetAccumulatedHostMemoryStats": nothing,
    }


def _install_accelerator(patches: Patches, gpus: Gpus) -> None:
    """``torch.accelerator`` asks C++ objects that know nothing of this GPU."""
    accelerator, cuda = torch.accelerator, torch.cuda
    given = {
        "is_available": lambda: True,
        "device_count": lambda: gpus.count,
        "current_accelerator": lambda check_available=False: torch.device("cuda"),
        "current_device_index": gpus.current,
        "current_device_idx": gpus.current,
        "set_device_index": cuda.set_device,
        "set_device_idx": cuda.set_device,
        "current_stream": cuda.current_stream,
        "set_stream": set_stream,
        "synchronize": lambda device=None: None,
    }
    for name in (
        *("empty_cache", "memory_stats", "memory_allocated", "max_memory_allocated"),
        *("memory_reserved", "max_memory_reserved", "reset_peak_memory_stats"),
        "reset_accumulated_memory_stats",
    ):
        given[name] = getattr(cuda, name)
    given["get_memory_info"] = cuda.mem_get_info
    for name, value in given.items():
        for module in (accelerator, getattr(accelerator, "memory", None)):
            if module is not None and hasattr(module, name):
                patches.set(module, name, value)


def _always(value: Any) -> Any:
    return lambda *args, **kwargs: value


def _nested(flat: dict[str, int]) -> dict[str, Any]:
    """``a.b.c: n`` as the nested dicts that C++ gives."""
    found: dict[str, Any] = {}
    for key, value in flat.items():
        *path, last = key.split(".")
        inner = found
        for name in path:
            inner = inner.setdefault(name, {})
        inner[last] = value
    return found


__all__ = ["install"]
