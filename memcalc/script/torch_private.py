"""Private parts of PyTorch that make fake tensors on ``cuda`` work without a GPU.

Read in PyTorch 2.11 and 2.13, CPU and CUDA builds. PyTorch asks two C++ objects about CUDA: the
device guard (which device is current) and the hooks (how many there are). Builds without CUDA,
or without a GPU, have a guard that knows of no device and hooks that say no. Both are replaced by
ones that know the simulated devices and do nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import torch

from memcalc.errors import EstimateError

OLDEST = (2, 11)
_CUDA = 1
"""``c10::DeviceType::CUDA``."""
_GUARDS = "_ZN3c104impl26device_guard_impl_registryE"
_HOOKS = "_ZN2at6detail12getCUDAHooksEv"
_ENGINE = "_ZN5torch8autograd6Engine18get_default_engineEv"
_START_THREADS = "_ZN5torch8autograd6Engine20start_device_threadsEv"
_BEFORE = 2
"""Words of a C++ virtual table before its functions (Itanium ABI)."""
_DESTRUCTORS = 2
_NO, _YES = 0, 1
_ANSWERS: dict[str, int] = {
    "hasCUDA": _YES,
    "isBuilt": _YES,
    "isAvailable": _YES,
    "hasPrimaryContext": _YES,
    "compiledWithCuDNN": _NO,
}
"""What the hooks shall answer beside the number of devices and the current one; all else stays as
it is.

Composite operators of a build with cuDNN would go to it; what it does is ours to decide
(``trace.operators``), as in a build without.
"""
_HOOKS_ARE = ("AcceleratorHooksInterface", "ATen/detail"), ("CUDAHooksInterface", "ATen/detail")
_GUARD_IS = (("DeviceGuardImplInterface", "c10/core/impl"),)
_Int = ctypes.c_int
_Device = ctypes.c_uint16
"""``c10::Device``: its type in the lower byte, its index in the upper one."""
_kept: list[Any] = []
"""What C++ points to, or once pointed to."""


class Devices(Protocol):
    """The simulated ones."""

    @property
    def usable(self) -> int:
        """How many the program can put something on."""

    def current(self) -> int:
        """The one that is current in this thread."""

    def exchange(self, index: int) -> int:
        """Make another the current one; returns the one that was."""


@contextlib.contextmanager
def seen(devices: Devices) -> Iterator[None]:
    """Let PyTorch's C++ code see CUDA devices inside.

    Raises:
        EstimateError: this build of PyTorch is not known.
    """
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if version < OLDEST or torch.version.hip:
        wanted = f"torch>={OLDEST[0]}.{OLDEST[1]}"
        raise EstimateError(
            f"PyTorch {torch.__version__} cannot be simulated on: type pip install '{wanted}'."
        )
    with contextlib.ExitStack() as found:
        try:
            _keep_description(found)
            _install_guard(found, devices)
            _install_hooks(found, devices)
        except (OSError, ValueError, AttributeError) as error:
            raise EstimateError(
                f"This build of PyTorch ({torch.__version__}) cannot be simulated on: {error}."
            ) from error
        yield


def _keep_description(found: contextlib.ExitStack) -> None:
    """What ``torch.__config__.show()`` says: the hooks of a CPU build cannot describe CUDA."""
    describe = torch._C._show_config
    said = describe()
    found.callback(setattr, torch._C, "_show_config", describe)
    torch._C._show_config = lambda: said


def serve_the_device() -> None:
    """Have the autograd engine serve the device, where it was started before there was one.

    It starts a thread for each device at its first backward, and never again
    (torch/csrc/autograd/engine.cpp, ``initialize_device_threads_pool``, 2.13).

    Raises:
        EstimateError: it cannot.
    """
    path = str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so")
    try:
        # The engine is asked for with Python's lock held, and its new threads take that lock.
        find = getattr(ctypes.PyDLL(path), _ENGINE)
        start = getattr(ctypes.CDLL(path), _START_THREADS)
    except (OSError, AttributeError) as error:
        raise EstimateError(
            "PyTorch has run a backward in this process before there was a simulated GPU: "
            "simulate first, or type memcalc simulate -- python train.py."
        ) from error
    find.restype = ctypes.c_void_p
    start.argtypes, start.restype = [ctypes.c_void_p], None
    start(find())


def _library(name: str) -> ctypes.CDLL:
    return ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / name))


def _install_guard(found: contextlib.ExitStack, devices: Devices) -> None:
    """Have PyTorch put its own do-nothing guard in place of one that counts no devices.

    That is what ``torch._C._ensureCUDADeviceGuardSet`` does. A CPU build has no guard, and one with
    a GPU has a guard that counts it, so one that answers zero to every question is put there first.
    The guard that does nothing counts one device; of several it is told.
    """
    registry = (ctypes.c_void_p * (_CUDA + 1)).in_dll(_library("libc10.so"), _GUARDS)
    found.callback(registry.__setitem__, _CUDA, registry[_CUDA])
    answer = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(lambda _: 0)
    functions = (ctypes.c_void_p * 64)(*[ctypes.cast(answer, ctypes.c_void_p).value] * 64)
    stub = (ctypes.c_void_p * 1)(ctypes.addressof(functions))
    _kept.extend((answer, functions, stub))
    registry[_CUDA] = ctypes.addressof(stub)
    torch._C._ensureCUDADeviceGuardSet()
    if registry[_CUDA] == ctypes.addressof(stub):
        raise ValueError("its CUDA device guard stays in place")
    if devices.usable > 1:
        guard = ctypes.c_void_p.from_address(registry[_CUDA] or 0)
        _answer(found, guard, _GUARD_IS, 0, _of_guard(devices))


def _of_guard(devices: Devices) -> dict[str, Any]:
    """What a guard says of several devices; the engine's threads tell it which is theirs.

    C++ goes back to the device that was current also where Python has raised an error, which no
    function in Python may be called with: guards change nothing (``exchangeDevice``,
    ``uncheckedSetDevice``), as the device of an operator follows from what it is given.
    """

    def use(_: Any, wanted: int) -> int:
        devices.exchange(wanted >> 8)
        return 0

    return {
        "deviceCount": ctypes.CFUNCTYPE(_Int, ctypes.c_void_p)(lambda _: devices.usable),
        "getDevice": ctypes.CFUNCTYPE(_Device, ctypes.c_void_p)(
            lambda _: devices.current() << 8 | _CUDA
        ),
        "setDevice": ctypes.CFUNCTYPE(_Int, ctypes.c_void_p, _Device)(use),
    }


def _install_hooks(found: contextlib.ExitStack, devices: Devices) -> None:
    """Point the CUDA hooks to a copy of their virtual table that answers for the devices."""
    kind = ctypes.CFUNCTYPE(_Int, ctypes.c_void_p)
    counts, current = kind(lambda _: devices.usable), kind(lambda _: devices.current())
    answers = {name: kind(lambda _, answer=answer: answer) for name, answer in _ANSWERS.items()}
    answers |= dict.fromkeys(("deviceCount", "getNumGPUs"), counts)
    answers |= dict.fromkeys(("getCurrentDevice", "current_device"), current)
    missing = {"hasCUDA", "isAvailable", "hasPrimaryContext"} - set(_slots(_HOOKS_ARE))
    if missing:
        raise ValueError(f"its headers do not declare {', '.join(sorted(missing))}")
    get = getattr(_library("libtorch_cpu.so"), _HOOKS)
    get.restype = ctypes.c_void_p
    _answer(found, ctypes.c_void_p.from_address(get()), _HOOKS_ARE, _DESTRUCTORS, answers)


def _answer(
    found: contextlib.ExitStack,
    there: ctypes.c_void_p,
    declared: tuple[tuple[str, str], ...],
    first: int,
    answers: dict[str, Any],
) -> None:
    """Point a C++ object to a copy of its virtual table in which some functions are these.

    Args:
        found: undoes it.
        there: where the object begins.
        declared: its class and those it is of, by header.
        first: place of the first function that is no destructor.
        answers: functions by name; those that this build does not declare are left out.
    """
    slots = list(_slots(declared))
    size, word = _BEFORE + _DESTRUCTORS + len(slots), ctypes.sizeof(ctypes.c_void_p)
    assert there.value is not None
    old = (ctypes.c_void_p * size).from_address(there.value - _BEFORE * word)
    table = (ctypes.c_void_p * size)(*old)
    for name, function in answers.items():
        if name in slots:
            at = _BEFORE + first + slots.index(name)
            table[at] = ctypes.cast(function, ctypes.c_void_p).value
    _kept.extend((table, answers))
    found.callback(setattr, there, "value", there.value)
    there.value = ctypes.addressof(table) + _BEFORE * word


def _slots(declared: tuple[tuple[str, str], ...]) -> Iterator[str]:
    """Names of virtual functions in the order of their table, without destructors.

    The headers are those that came with this very build.
    """
    folder = Path(torch.__file__).parent / "include"
    seen = set()
    for name, inside in declared:
        text = (folder / inside / f"{name}.h").read_text(encoding="utf-8")
        text = re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)
        text = re.sub(r"#ifdef USE_ROCM.*?#endif", "", text, flags=re.DOTALL)
        start = re.search(rf"struct\s+(?:TORCH|C10)_API\s+{name}\b", text)
        if start is None:
            raise ValueError(f"{name}.h is not understood")
        body = text[start.start() : text.index("\n};", start.start())]
        for function in re.findall(r"\bvirtual\s[^;{(]*?(~?\w+)\s*\(", body):
            if not function.startswith("~") and function not in seen:
                seen.add(function)
                yield function
