"""NVML of the simulated GPU, for scripts that ask the card itself by way of ``pynvml``.

What is built on ``pynvml`` finds it too: ``torch.cuda.temperature``, trackers, gpustat, nvitop.
Source: nvml.h of CUDA 13.0, and ``_nvmlGetFunctionPointer`` of pynvml.py (nvidia-ml-py 13).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

from memcalc.script import place
from memcalc.script.patches import Patches

_SUCCESS, _INVALID_ARGUMENT, _NOT_SUPPORTED, _INSUFFICIENT_SIZE = 0, 2, 3, 7
"""``nvmlReturn_t``."""
_ERRORS = {_INVALID_ARGUMENT: b"Invalid Argument", _NOT_SUPPORTED: b"Not Supported"}
_UUID = b"GPU-00000000-0000-0000-0000-000000000000"
_PLACE = b"00000000:00:00.0"
_DRIVER = b"580.65.06"
"""The driver that CUDA 13.0 came with (its release notes, table 3)."""
_GAUGES = frozenset(
    f"nvmlDeviceGet{name}"
    for name in (
        *("UtilizationRates", "EncoderUtilization", "DecoderUtilization", "Temperature"),
        *("TemperatureV", "PowerUsage", "TotalEnergyConsumption", "ClockInfo", "MaxClockInfo"),
        *("FanSpeed", "PerformanceState", "ComputeMode", "PersistenceMode", "PcieThroughput"),
        *("Index", "MinorNumber"),
    )
)
"""What they are asked for is zero when they are called, and stays so."""
_MODULES = ("pynvml", "pynvml.nvml", "py3nvml.py3nvml")
_SAID = (
    "NVML answers for the simulated GPU: its memory is what this process takes, "
    "and use, temperature, power and clocks are 0"
)


class Card(NamedTuple):
    """The GPU that is asked about; sizes in bytes."""

    name: str
    capability: tuple[int, int]
    total: int
    free: Callable[[], int]
    cuda: int
    """Version of CUDA, such as 13000."""


class Library:
    """Stands for ``ctypes.CDLL("libnvidia-ml.so.1")``.

    A function that is not here says that the card does not support what it is for, as functions
    of NVML do on many cards.
    """

    def __init__(self, card: Card, say: Callable[[str], None] = lambda _: None) -> None:
        self._card = card
        self._say = say
        self._functions = self._known()

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvml"):
            raise AttributeError(name)
        known = self._functions.get(name)
        return known or (self._gauge if name in _GAUGES else lambda *_: _NOT_SUPPORTED)

    def _gauge(self, *_: Any) -> int:
        self._say(place.named(_SAID))
        return _SUCCESS

    def _known(self) -> dict[str, Any]:
        card = self._card
        device = "nvmlDeviceGet"
        processes = f"{device}ComputeRunningProcesses"
        return {
            **dict.fromkeys(("nvmlInit_v2", "nvmlInitWithFlags", "nvmlShutdown"), _succeed),
            "nvmlErrorString": lambda error: _ERRORS.get(error, b"Unknown Error"),
            "nvmlSystemGetDriverVersion": _says(_DRIVER),
            "nvmlSystemGetNVMLVersion": _says(b"13." + _DRIVER),
            "nvmlSystemGetCudaDriverVersion": _says(card.cuda),
            "nvmlSystemGetCudaDriverVersion_v2": _says(card.cuda),
            f"{device}Count_v2": _says(1),
            f"{device}HandleByIndex_v2": _of_index,
            **dict.fromkeys((f"{device}HandleByUUID", f"{device}HandleByPciBusId_v2"), _succeed),
            f"{device}Name": lambda _, *out: _put(out[0], card.name.encode()),
            f"{device}UUID": lambda _, *out: _put(out[0], _UUID),
            f"{device}CudaComputeCapability": self._capability,
            f"{device}PciInfo_v3": self._where,
            f"{device}MemoryInfo": self._memory,
            f"{device}MemoryInfo_v2": self._memory,
            **dict.fromkeys((processes, f"{processes}_v2", f"{processes}_v3"), self._processes),
            **dict.fromkeys(
                (f"{device}GraphicsRunningProcesses{version}" for version in ("", "_v2", "_v3")),
                _succeed,
            ),
        }

    def _memory(self, *given: Any) -> int:
        self._say(place.named(_SAID))
        found = _target(given[-1])
        found.total, found.free = self._card.total, self._card.free()
        found.used = found.total - found.free
        return _SUCCESS

    def _capability(self, _: Any, major: Any, minor: Any) -> int:
        for out, value in zip((major, minor), self._card.capability, strict=True):
            _put(out, value)
        return _SUCCESS

    def _where(self, _: Any, out: Any) -> int:
        _target(out).busId = _PLACE
        return _SUCCESS

    def _processes(self, _: Any, count: Any, found: Any) -> int:
        """This process alone; whoever gives no room for it is told how much it takes."""
        room = _target(count).value if found is not None else 0
        _put(count, 1)
        if room < 1:
            return _INSUFFICIENT_SIZE
        found[0].pid = os.getpid()
        found[0].usedGpuMemory = self._card.total - self._card.free()
        return _SUCCESS


def install(patches: Patches, card: Card, say: Callable[[str], None]) -> None:
    """Let ``pynvml`` find this one GPU."""
    library = Library(card, say)

    def serve(module: ModuleType) -> None:
        if "_LoadNvmlLibrary" not in vars(module):
            return
        patches.set(module, "nvmlLib", library)
        patches.set(module, "_nvmlGetFunctionPointer_cache", {})
        patches.set(module, "_nvmlLib_refcount", 0)

    for name in _MODULES:
        patches.when_imported(name, serve)


def _target(out: Any) -> Any:
    """What an argument points to: ``byref`` and ``pointer`` of ctypes keep it, arrays are it."""
    held = getattr(out, "_obj", None)
    return held if held is not None else getattr(out, "contents", out)


def _put(out: Any, value: int | bytes) -> int:
    _target(out).value = value
    return _SUCCESS


def _says(value: int | bytes) -> Callable[..., int]:
    return lambda out, *_: _put(out, value)


def _succeed(*_: Any) -> int:
    return _SUCCESS


def _of_index(index: Any, _: Any) -> int:
    return _SUCCESS if getattr(index, "value", index) == 0 else _INVALID_ARGUMENT
