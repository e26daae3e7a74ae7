"""NVML of the simulated GPUs, for scripts that ask the card itself by way of ``pynvml``.

What is built on ``pynvml`` finds it too: ``torch.cuda.temperature``, trackers, gpustat, nvitop.
Source: nvml.h of CUDA 13.0, and ``_nvmlGetFunctionPointer`` of pynvml.py (nvidia-ml-py 13).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

from memcalc.script import place
from memcalc.script.patches import Patches

_SUCCESS, _INVALID_ARGUMENT, _NOT_SUPPORTED, _INSUFFICIENT_SIZE = 0, 2, 3, 7
"""``nvmlReturn_t``."""
_ERRORS = {_INVALID_ARGUMENT: b"Invalid Argument", _NOT_SUPPORTED: b"Not Supported"}
_UUID = "GPU-00000000-0000-0000-0000-{:012x}"
_PLACE = "00000000:{:02X}:00.0"
_DRIVER = b"580.65.06"
"""The driver that CUDA 13.0 came with (its release notes, table 3)."""
_GAUGES = frozenset(
    f"nvmlDeviceGet{name}"
    for name in (
        *("UtilizationRates", "EncoderUtilization", "DecoderUtilization", "Temperature"),
        *("TemperatureV", "PowerUsage", "TotalEnergyConsumption", "ClockInfo", "MaxClockInfo"),
        *("FanSpeed", "PerformanceState", "ComputeMode", "PersistenceMode", "PcieThroughput"),
    )
)
"""What they are asked for is zero when they are called, and stays so."""
_MODULES = ("pynvml", "pynvml.nvml", "py3nvml.py3nvml")
_SAID = (
    "NVML answers for the simulated GPU: its memory is what this process takes, "
    "and use, temperature, power and clocks are 0"
)


class Card(NamedTuple):
    """The GPUs that are asked about, all alike; sizes in bytes."""

    name: str
    capability: tuple[int, int]
    total: int
    free: Callable[[int], int]
    """Of the one with this number."""
    cuda: int
    """Version of CUDA, such as 13000."""
    gpus: int = 1
    kept: int = 0
    """What the driver keeps of each beside ``total``."""

    def used(self, gpu: int) -> int:
        """What processes take of one."""
        return self.total - self.free(gpu)


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
            f"{device}Count_v2": _says(card.gpus),
            f"{device}HandleByIndex_v2": self._of_index,
            f"{device}HandleByUUID": self._named_by(_UUID),
            f"{device}HandleByPciBusId_v2": self._named_by(_PLACE),
            **dict.fromkeys(
                (f"{device}Index", f"{device}MinorNumber"),
                lambda handle, out: _put(out, _index_of(handle)),
            ),
            f"{device}Name": lambda _, *out: _put(out[0], card.name.encode()),
            f"{device}UUID": lambda handle, *out: _put(out[0], _name(_UUID, _index_of(handle))),
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

    def _of_index(self, index: Any, out: Any) -> int:
        number = getattr(index, "value", index)
        if not 0 <= number < self._card.gpus:
            return _INVALID_ARGUMENT
        # A handle is an address that nobody looks behind: the number itself.
        ctypes.c_void_p.from_address(ctypes.addressof(_target(out))).value = number
        return _SUCCESS

    def _named_by(self, pattern: str) -> Callable[[Any, Any], int]:
        def named(name: Any, out: Any) -> int:
            text = bytes(getattr(name, "value", name))
            names = [_name(pattern, index) for index in range(self._card.gpus)]
            return self._of_index(names.index(text) if text in names else 0, out)

        return named

    def _memory(self, handle: Any, *given: Any) -> int:
        self._say(place.named(_SAID))
        card, index, found = self._card, _index_of(handle), _target(given[-1])
        found.total, found.free = card.total + card.kept, card.free(index)
        found.used = card.used(index)
        # The second version tells what the driver keeps apart from what is used.
        if hasattr(found, "reserved"):
            found.reserved = card.kept
        else:
            found.used += card.kept
        return _SUCCESS

    def _capability(self, _: Any, major: Any, minor: Any) -> int:
        for out, value in zip((major, minor), self._card.capability, strict=True):
            _put(out, value)
        return _SUCCESS

    def _where(self, handle: Any, out: Any) -> int:
        _target(out).busId = _name(_PLACE, _index_of(handle))
        return _SUCCESS

    def _processes(self, handle: Any, count: Any, found: Any) -> int:
        """This process alone; whoever gives no room for it is told how much it takes."""
        room = _target(count).value if found is not None else 0
        _put(count, 1)
        if room < 1:
            return _INSUFFICIENT_SIZE
        found[0].pid = os.getpid()
        found[0].usedGpuMemory = self._card.used(_index_of(handle))
        return _SUCCESS


def install(patches: Patches, card: Card, say: Callable[[str], None]) -> None:
    """Let ``pynvml`` find these GPUs."""
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


def _index_of(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0 if handle is not None else 0


def _name(pattern: str, index: int) -> bytes:
    return pattern.format(index).encode()
