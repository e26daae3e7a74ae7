"""Lets cuDNN plan one convolution for a device that is not there.

Since 9.8 the library takes a description of a device in words
(``CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION``). Before, it reads the device from a handle, which
only a driver makes: those are not asked.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import json
from collections.abc import Iterator, Sequence
from typing import Any

from memcalc.kernels.cudnn_descriptors import Descriptor, Error, Kind, Maker, Type
from memcalc.kernels.target import Target

_FLOAT = 0
_DTYPES = (_FLOAT, 2, 9)
"""cudnnDataType_t of float32, float16 and bfloat16."""
_CROSS_CORRELATION = 1
_INSTANT, _FALLBACK = 0, 2
_NONDETERMINISTIC, _NOTES = 4, 10
"""CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC, and how many notes an engine may have."""
_OPERATIONS = ((10, 700, (703, 704, 705)), (12, 706, (709, 710, 711)), (11, 712, (715, 716, 717)))
"""By direction: descriptor, first attribute, and those of weight, input and output."""
_ALIGNMENT = 16
"""What PyTorch says of every tensor's address (``getAlignment``)."""
_CLOCKS = {114: (1_755_000, 1_593_000)}
_H100_SXM = (1_980_000, 2_619_000)
"""KHz of multiprocessors and memory, as CUDA's deviceQuery prints them of an H100 PCIe, which has
114 multiprocessors, and of an H100 SXM. Which is higher decides between engines on 9.0, in one of
a hundred problems (an H200, with memory at 3,201 MHz, has another one than an H100 SXM in 3 of
792); on no other capability did it in 792 that were asked."""


OLDEST = 90800
"""The first that takes a description of a device."""


def planned(library: ctypes.CDLL, direction: int, problem: Any, target: Target) -> Iterator[int]:
    """Bytes of the plans of a convolution, in the order that the library would choose them.

    Args:
        library: cuDNN, ``OLDEST`` or later.
        direction: ``convolution.Direction``.
        problem: sizes, as in ``convolution.Problem``.
        target: the GPU.

    Raises:
        Error: there is no such convolution.
    """
    with contextlib.ExitStack() as stack:
        made = Maker(library, stack)
        device = _described(made, target)
        graph = _graph(made, direction, *problem)
        yield from _plans(made, graph, device, fixed=target.cudnn_deterministic)


def _described(made: Maker, target: Target) -> Descriptor:
    """A device with the limits of its capability."""
    major, minor = target.capability
    clock, memory_clock = _CLOCKS.get(target.multiprocessors, _H100_SXM)
    words = {
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
    return made(Kind.DEVICE).text(2702, json.dumps(words)).done()


def by_kind(moves: Sequence[int]) -> tuple[Sequence[int], ...]:
    """Strides, paddings and dilations, which stand in one."""
    axes = len(moves) // 3
    return tuple(moves[at : at + axes] for at in range(0, len(moves), axes))


def made_of(image: Sequence[int], kernel: Sequence[int], moves: Sequence[int]) -> list[int]:
    """The sides of what a convolution makes of an image, (D,) H, W."""
    stride, padding, dilation = by_kind(moves)
    return [
        (image[axis] + 2 * padding[axis] - dilation[axis] * (kernel[axis] - 1) - 1) // stride[axis]
        + 1
        for axis in range(len(image))
    ]


def _graph(
    made: Maker,
    direction: int,
    image: Sequence[int],
    weight: Sequence[int],
    moves: Sequence[int],
    groups: int,
    dtype: int,
    last: bool = False,
) -> Descriptor:
    """One convolution as an operation graph; groups show in the weight's channels."""
    stride, padding, dilation = by_kind(moves)
    output = (image[0], weight[0], *made_of(image[2:], weight[2:], moves))
    kind, first, (w, x, y) = _OPERATIONS[direction]
    operation = made(kind)
    for attribute, name, shape in ((w, "w", weight), (x, "x", image), (y, "y", output)):
        tensor = made(Kind.TENSOR).set(901, Type.DATA_TYPE, _DTYPES[dtype])
        tensor.set(902, Type.INT64, *shape).set(903, Type.INT64, *_strides(shape, last))
        tensor.set(906, Type.INT64, ord(name)).set(900, Type.INT64, _ALIGNMENT)
        operation.set(attribute, Type.DESCRIPTOR, tensor.done())
    described = (
        made(Kind.CONVOLUTION).set(106, Type.INT64, len(stride)).set(100, Type.DATA_TYPE, _FLOAT)
    )
    described.set(101, Type.CONVOLUTION_MODE, _CROSS_CORRELATION)
    for attribute, values in ((102, dilation), (103, stride), (104, padding), (105, padding)):
        described.set(attribute, Type.INT64, *values)
    operation.set(first + 2, Type.DESCRIPTOR, described.done())
    operation.set(first, Type.FLOAT, 1.0).set(first + 1, Type.FLOAT, 0.0)
    return made(Kind.GRAPH).set(801, Type.DESCRIPTOR, operation.done()).done()


def _strides(shape: Sequence[int], last: bool) -> list[int]:
    """Of a tensor (N, C, ..., H, W) in a row, or with its channels last."""
    order = list(reversed(range(len(shape))))
    if last:
        order.insert(0, order.pop(-2))
    sizes = (1, *(shape[axis] for axis in order[:-1]))
    steps = dict(zip(order, itertools.accumulate(sizes, lambda a, b: a * b), strict=True))
    return [steps[axis] for axis in range(len(shape))]


def _plans(made: Maker, graph: Descriptor, device: Descriptor, *, fixed: bool) -> Iterator[int]:
    """What heuristics propose, then the fallbacks, as PyTorch tries them.

    ``fixed``: without those whose results differ from run to run (``filterEngineConfigs``).
    """
    for mode in (_INSTANT, _FALLBACK):
        asked = made(Kind.HEURISTICS).set(201, Type.DESCRIPTOR, graph)
        asked.set(200, Type.HEURISTICS_MODE, mode).set(204, Type.DESCRIPTOR, device).done()
        configs = [made(Kind.ENGINE_CONFIG) for _ in range(asked.fill(202, ()))]
        for config in configs[: asked.fill(202, configs)]:
            with contextlib.suppress(Error):
                if fixed and _NONDETERMINISTIC in _notes(made, config):
                    continue
                plan = made(Kind.PLAN).set(401, Type.DESCRIPTOR, config)
                yield plan.set(407, Type.DESCRIPTOR, device).done().number(402)


def _notes(made: Maker, config: Descriptor) -> list[int]:
    """What is said of the results of a configuration's engine."""
    engine = made(Kind.ENGINE)
    config.fill(300, [engine])
    return engine.numbers(1303, Type.NUMERICAL_NOTE, _NOTES)
