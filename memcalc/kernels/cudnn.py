"""Asks cuDNN itself what a convolution takes, where the library is installed; no GPU is needed.

cuDNN plans for a device that it is told of (``CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION``, since
9.8): its heuristics name engines for a problem, and the first that makes a plan is what PyTorch
runs (aten/src/ATen/native/cudnn/Conv_v8.cpp, ``try_configs``), with ``torch.backends.cudnn``'s
``benchmark`` off and ``allow_tf32`` on. cuBLASLt must be there too: some engines are its own, and
without it the choice falls on others.

Numbers of attributes and types: cudnn_graph.h of 9.20. Answers take about 2 ms; the installed
version answers, whatever version the PyTorch in question brings along.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import itertools
import json
import os
from collections.abc import Iterator, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any

from memcalc.kernels.target import Target

FOLDERS = "MEMCALC_CUDNN"
"""Environment variable: folders with libcudnn.so.9 and libcublasLt, searched first."""
_OLDEST = 90800
_BROUGHT = {(2, 11): 20, (2, 12): 20, (2, 13): 20, (2, 14): 24, (2, 15): 26}
"""Which cuDNN 9 comes with a PyTorch, by its wheels' metadata. 2.11 has 9.19, which planned as 9.20
does in all 3,435 cases compared; 9.24 and 9.26 plan most others."""
_LIBRARIES = (("libcublasLt.so.13", "libcublasLt.so.12"), ("libcudnn.so.9",))
_PACKAGES = ("nvidia.cu13", "nvidia.cublas", "nvidia.cudnn")
_ALIGNMENT = 16
"""What PyTorch says of every tensor's address (``getAlignment``)."""


class _Kind(IntEnum):
    CONVOLUTION = 1
    ENGINE = 2
    ENGINE_CONFIG = 3
    HEURISTICS = 4
    PLAN = 5
    GRAPH = 15
    TENSOR = 17
    DEVICE = 38


class _Type(IntEnum):
    DATA_TYPE = 1
    INT64 = 3
    FLOAT = 4
    CONVOLUTION_MODE = 7
    HEURISTICS_MODE = 8
    NUMERICAL_NOTE = 11
    DESCRIPTOR = 15
    CHAR = 24


_C: dict[_Type, Any] = {
    _Type.DATA_TYPE: ctypes.c_int,
    _Type.INT64: ctypes.c_int64,
    _Type.FLOAT: ctypes.c_float,
    _Type.CONVOLUTION_MODE: ctypes.c_int,
    _Type.HEURISTICS_MODE: ctypes.c_int,
    _Type.DESCRIPTOR: ctypes.c_void_p,
}
_FLOAT = 0
_DTYPES = (_FLOAT, 2, 9)
"""cudnnDataType_t of float32, float16 and bfloat16."""
_CROSS_CORRELATION = 1
_INSTANT, _FALLBACK = 0, 2
_NONDETERMINISTIC, _NOTES = 4, 10
"""CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC, and how many notes an engine may have."""
_OPERATIONS = ((10, 700, (703, 704, 705)), (12, 706, (709, 710, 711)), (11, 712, (715, 716, 717)))
"""By direction: descriptor, first attribute, and those of weight, input and output."""


class _Error(Exception):
    """CuDNN refused."""


def version() -> str | None:
    """Version of the library that would answer, such as ``9.20.0``; ``None``: there is none."""
    library = _library()
    if library is None:
        return None
    number = library.cudnnGetVersion()
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


def answers_for(torch: tuple[int, int]) -> bool:
    """There is a library, and it is the one that comes with this PyTorch, or was named for it."""
    library = _library()
    if library is None:
        return False
    minor = library.cudnnGetVersion() // 100 % 100
    return FOLDERS in os.environ or _BROUGHT.get(torch, minor) == (20 if minor == 19 else minor)


def workspace(direction: int, problem: Any, target: Target) -> int | None:
    """Bytes of the first plan that cuDNN makes for a convolution; see ``workspaces``."""
    return next(iter(workspaces(direction, problem, target, most=1)), None)


@functools.cache
def workspaces(
    direction: int, problem: Any, target: Target, most: int | None = None
) -> tuple[int, ...]:
    """Bytes of the plans that cuDNN makes for a convolution, in the order it would choose them.

    All of them are what ``torch.backends.cudnn.benchmark`` tries (``get_plans_from_find``).

    Args:
        direction: ``convolution.Direction``.
        problem: sizes, as in ``convolution.Problem``.
        target: the GPU; its multiprocessors can decide between engines.
        most: how many are enough; ``None``: all.

    Returns:
        Nothing where no library is installed or it is not the one that comes with the target's
        PyTorch, unless it was named for it (``MEMCALC_CUDNN``), or none of its engines takes the
        problem.
    """
    library = _library()
    if library is None or not answers_for(target.torch):
        return ()
    with contextlib.ExitStack() as stack:
        made = _Maker(library, stack)
        try:
            device = _device(library, target)
            graph = _graph(made, direction, *problem)
            plans = _plans(made, graph, device, fixed=target.cudnn_deterministic)
            return tuple(itertools.islice(plans, most))
        except _Error:
            return ()


@functools.cache
def _library() -> ctypes.CDLL | None:
    found = None
    for names in _LIBRARIES:
        found = next((lib for lib in map(_load, names) if lib is not None), None)
        if found is None:
            return None
    assert found is not None
    for name in ("SetAttribute", "GetAttribute", "Finalize", "DestroyDescriptor"):
        getattr(found, f"cudnnBackend{name}").argtypes = _ARGUMENTS[name]
    found.cudnnGetVersion.restype = ctypes.c_size_t
    return found if found.cudnnGetVersion() >= _OLDEST else None


_ARGUMENTS: dict[str, list[Any]] = {
    "SetAttribute": [ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_void_p],
    "GetAttribute": [
        ctypes.c_void_p,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int64,
        ctypes.c_void_p,
        ctypes.c_void_p,
    ],
    "Finalize": [ctypes.c_void_p],
    "DestroyDescriptor": [ctypes.c_void_p],
}


def _load(name: str) -> ctypes.CDLL | None:
    paths = [str(folder / name) for folder in _folders() if (folder / name).exists()]
    for path in (*paths, name):
        with contextlib.suppress(OSError):
            return ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    return None


def _folders() -> Iterator[Path]:
    yield from map(Path, filter(None, os.environ.get(FOLDERS, "").split(os.pathsep)))
    for name in _PACKAGES:
        with contextlib.suppress(ImportError):
            spec = importlib.util.find_spec(name)
            for folder in (spec.submodule_search_locations or ()) if spec else ():
                yield Path(folder) / "lib"


class _Descriptor:
    """A backend descriptor; ended with the stack that made it."""

    def __init__(self, library: ctypes.CDLL, kind: int) -> None:
        self._library = library
        self.handle = ctypes.c_void_p()
        _check(library.cudnnBackendCreateDescriptor(int(kind), ctypes.byref(self.handle)))

    def set(self, attribute: int, kind: _Type, *values: Any) -> _Descriptor:
        """Set an attribute to one value or a list."""
        plain = [v.handle.value if isinstance(v, _Descriptor) else v for v in values]
        array: Any = (_C[kind] * len(plain))(*plain)
        return self._set(attribute, kind, len(plain), array)

    def text(self, attribute: int, value: str) -> _Descriptor:
        """Set an attribute to a text."""
        encoded = value.encode()
        return self._set(attribute, _Type.CHAR, len(encoded), ctypes.create_string_buffer(encoded))

    def _set(self, attribute: int, kind: _Type, count: int, array: Any) -> _Descriptor:
        _check(self._library.cudnnBackendSetAttribute(self.handle, attribute, kind, count, array))
        return self

    def done(self) -> _Descriptor:
        """No more attributes are set."""
        _check(self._library.cudnnBackendFinalize(self.handle))
        return self

    def number(self, attribute: int) -> int:
        """Read a number."""
        value, count = ctypes.c_int64(), ctypes.c_int64()
        arguments = (_Type.INT64, 1, ctypes.byref(count), ctypes.byref(value))
        _check(self._library.cudnnBackendGetAttribute(self.handle, attribute, *arguments))
        return value.value

    def numbers(self, attribute: int, kind: _Type, most: int) -> list[int]:
        """Read a list of numbers of 32 bits."""
        array, count = (ctypes.c_int * most)(), ctypes.c_int64()
        arguments = (kind, most, ctypes.byref(count), array)
        _check(self._library.cudnnBackendGetAttribute(self.handle, attribute, *arguments))
        return list(array[: count.value])

    def fill(self, attribute: int, others: Sequence[_Descriptor]) -> int:
        """Let an attribute's descriptors be written into others; how many there are."""
        array = (ctypes.c_void_p * len(others))(*(other.handle.value for other in others))
        count = ctypes.c_int64()
        arguments = (_Type.DESCRIPTOR, len(others), ctypes.byref(count), array if others else None)
        _check(self._library.cudnnBackendGetAttribute(self.handle, attribute, *arguments))
        return count.value

    def end(self) -> None:
        """Give it back."""
        self._library.cudnnBackendDestroyDescriptor(self.handle)


class _Maker:
    """Makes descriptors that end with a stack."""

    def __init__(self, library: ctypes.CDLL, stack: contextlib.ExitStack) -> None:
        self._library = library
        self._stack = stack

    def __call__(self, kind: int) -> _Descriptor:
        made = _Descriptor(self._library, kind)
        self._stack.callback(made.end)
        return made


def _check(status: int) -> None:
    if status:
        raise _Error(status)


_CLOCKS = {114: (1_755_000, 1_593_000)}
_H100_SXM = (1_980_000, 2_619_000)
"""KHz of multiprocessors and memory, as CUDA's deviceQuery prints them of an H100 PCIe, which has
114 multiprocessors, and of an H100 SXM. Which is higher decides between engines on 9.0, in one of
a hundred problems (an H200, with memory at 3,201 MHz, has another one than an H100 SXM in 3 of
792); on no other capability did it in 792 that were asked."""


@functools.cache
def _device(library: ctypes.CDLL, target: Target) -> _Descriptor:
    """The device to plan for: limits of its capability."""
    major, minor = target.capability
    clock, memory_clock = _CLOCKS.get(target.multiprocessors, _H100_SXM)
    told = {
        "maxGridSize": [2147483647, 65535, 65535],
        "maxBlockSize": [1024, 1024, 64],
        "regsPerBlock": 65536,
        "multiProcessorCount": target.multiprocessors,
        "warpSize": 32,
        "maxSharedMemoryPerBlock": 49152,
        "maxSharedMemoryPerBlockOptin": target.architecture.shared_memory_of_block,
        "reservedSharedMemoryPerBlock": 1024 if major >= 8 else 0,
        "maxRegistersPerSM": 65536,
        "maxCtasPerSM": 32,
        "maxThreadsPerBlock": 1024,
        "maxThreadsPerSM": target.architecture.threads,
        "pciDeviceId": 0,
        "isTccDriver": 0,
        "supportCoopLaunch": 1,
        "totalGlobalMem": 80 << 30,
        "smClockRateKHz": clock,
        "memClockRateKHz": memory_clock,
        "l2CacheSize": 40 << 20,
        "cudaDeviceId": 0,
        "deviceVer": major * 100 + minor * 10,
        "driverVer": 13000,
        "deviceName": "GPU",
    }
    return _Descriptor(library, _Kind.DEVICE).text(2702, json.dumps(told)).done()


def _graph(
    made: _Maker,
    direction: int,
    image: Sequence[int],
    weight: Sequence[int],
    moves: Sequence[int],
    groups: int,
    dtype: int,
    last: bool = False,
) -> _Descriptor:
    """One convolution as an operation graph; groups show in the weight's channels."""
    stride, padding, dilation = moves[:2], moves[2:4], moves[4:]
    spatial = [
        (image[2 + axis] + 2 * padding[axis] - dilation[axis] * (weight[2 + axis] - 1) - 1)
        // stride[axis]
        + 1
        for axis in (0, 1)
    ]
    output = (image[0], weight[0], *spatial)
    kind, first, (w, x, y) = _OPERATIONS[direction]
    operation = made(kind)
    for attribute, name, shape in ((w, "w", weight), (x, "x", image), (y, "y", output)):
        tensor = made(_Kind.TENSOR).set(901, _Type.DATA_TYPE, _DTYPES[dtype])
        tensor.set(902, _Type.INT64, *shape).set(903, _Type.INT64, *_strides(shape, last))
        tensor.set(906, _Type.INT64, ord(name)).set(900, _Type.INT64, _ALIGNMENT)
        operation.set(attribute, _Type.DESCRIPTOR, tensor.done())
    described = made(_Kind.CONVOLUTION).set(106, _Type.INT64, 2).set(100, _Type.DATA_TYPE, _FLOAT)
    described.set(101, _Type.CONVOLUTION_MODE, _CROSS_CORRELATION)
    for attribute, values in ((102, dilation), (103, stride), (104, padding), (105, padding)):
        described.set(attribute, _Type.INT64, *values)
    operation.set(first + 2, _Type.DESCRIPTOR, described.done())
    operation.set(first, _Type.FLOAT, 1.0).set(first + 1, _Type.FLOAT, 0.0)
    return made(_Kind.GRAPH).set(801, _Type.DESCRIPTOR, operation.done()).done()


def _strides(shape: Sequence[int], last: bool) -> list[int]:
    """Of a tensor (N, C, H, W) in a row, or with its channels last."""
    order = (3, 2, 1, 0) if not last else (1, 3, 2, 0)
    sizes = (1, *(shape[axis] for axis in order[:-1]))
    steps = dict(zip(order, itertools.accumulate(sizes, lambda a, b: a * b), strict=True))
    return [steps[axis] for axis in range(4)]


def _plans(made: _Maker, graph: _Descriptor, device: _Descriptor, *, fixed: bool) -> Iterator[int]:
    """What heuristics propose, then the fallbacks, as PyTorch tries them.

    ``fixed``: without those whose results differ from run to run (``filterEngineConfigs``).
    """
    for mode in (_INSTANT, _FALLBACK):
        asked = made(_Kind.HEURISTICS).set(201, _Type.DESCRIPTOR, graph)
        asked.set(200, _Type.HEURISTICS_MODE, mode).set(204, _Type.DESCRIPTOR, device).done()
        configs = [made(_Kind.ENGINE_CONFIG) for _ in range(asked.fill(202, ()))]
        for config in configs[: asked.fill(202, configs)]:
            with contextlib.suppress(_Error):
                if fixed and _NONDETERMINISTIC in _notes(made, config):
                    continue
                plan = made(_Kind.PLAN).set(401, _Type.DESCRIPTOR, config)
                size = plan.set(407, _Type.DESCRIPTOR, device).done().number(402)
                yield size


def _notes(made: _Maker, config: _Descriptor) -> list[int]:
    """What is said of the results of a configuration's engine."""
    engine = made(_Kind.ENGINE)
    config.fill(300, [engine])
    return engine.numbers(1303, _Type.NUMERICAL_NOTE, _NOTES)
