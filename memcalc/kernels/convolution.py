"""The workspace of cuDNN's convolutions, which PyTorch takes and gives back around each call.

cuDNN's heuristics choose an engine for a problem and a compute capability (seldom by clocks or the
number of multiprocessors as well, ``kernels.cudnn``), and the engine says what it takes: mostly its
inputs and outputs in another layout. There is no formula for the choice, so sizes are looked up
among those read from the library itself, by planning without a device (configs/convolutions,
benchmarks/record_cudnn.py). For a problem that is not there the library is asked, where it is
installed (``kernels.cudnn``); else it is known within limits (``kernels.alike``).
PyTorch's side: aten/src/ATen/native/cudnn/Conv_v8.cpp, ``run_single_conv``, with
``torch.backends.cudnn.benchmark`` off and ``allow_tf32`` on, as they are unless set.
"""

from __future__ import annotations

import functools
import json
from enum import IntEnum
from typing import Any

from memcalc.files import shipped
from memcalc.kernels import cudnn
from memcalc.kernels.target import Target

UNKNOWN = "the workspaces of cuDNN convolutions of other types than fp32, fp16 and bf16"
FOLDER = "convolutions"
"""In ``configs``: a folder for each compute capability, and in it a file for each cuDNN."""
DTYPES = ("float32", "float16", "bfloat16")


class Direction(IntEnum):
    """What a convolution's kernel makes."""

    OUTPUT = 0
    INPUT_GRAD = 1
    WEIGHT_GRAD = 2


Problem = tuple[Any, ...]
"""Input (N, C, H, W); weight (K, C / groups, R, S); stride, padding and dilation in one; groups;
type as an index of ``DTYPES``; and ``True`` where channels lie last. A convolution in one
dimension has H = R = 1, as in PyTorch; one of volumes has (N, C, D, H, W) and (K, C / groups, T, R,
S)."""


def workspace(direction: int, problem: Problem | None, target: Target) -> int | None:
    """Bytes that the kernel takes beside its output, or ``None`` where they are not known exactly.

    Args:
        direction: a ``Direction``.
        problem: the sizes; ``None`` where they do not make a problem of this kind.
        target: the GPU and the PyTorch, with which a version of cuDNN comes.
    """
    if not target.cudnn:
        return 0
    if problem is None:
        return None
    (batch, *image), *rest = problem
    if target.cudnn_benchmark:
        return None
    known = recorded(target.capability, target.torch)
    # What was recorded may choose any engine.
    by_batch = {} if target.cudnn_deterministic else known.get(text((image, *rest)), {})
    sizes = by_batch.get(str(batch))
    return cudnn.workspace(direction, problem, target) if sizes is None else sizes[direction]


def nearest(torch: tuple[int, int], capability: tuple[int, int]) -> tuple[int, int]:
    """The version that convolutions were recorded with there: this one, else the nearest."""
    known = versions(capability)
    return max((version for version in known if version <= torch), default=known[0])


def versions(capability: tuple[int, int]) -> list[tuple[int, int]]:
    """PyTorch whose cuDNN was recorded there; where none was, with any capability."""
    places = [capability] if capability in capabilities() else capabilities()
    minors = {minor for where in places for minor in _minors(where)}
    return sorted(torch for torch, minor in cudnn.BROUGHT.items() if minor in minors)


def text(problem: Any) -> str:
    """A problem but for its batch, as recordings name it."""
    return json.dumps(problem, separators=(",", ":"))


Recorded = dict[str, dict[str, list[int]]]
"""By problem but for its batch, then by batch: bytes by direction."""


@functools.cache
def capabilities() -> tuple[tuple[int, int], ...]:
    """Compute capabilities that convolutions were recorded for."""
    folders = (shipped.configs() / FOLDER).glob("[0-9]*.[0-9]*")
    return tuple(sorted(_pair(folder.name) for folder in folders))


@functools.cache
def _minors(capability: tuple[int, int]) -> frozenset[int]:
    """Which cuDNN 9 were recorded with a compute capability."""
    files = (shipped.configs() / _folder(capability)).glob("9.*.json")
    return frozenset(_pair(file.stem)[1] for file in files)


def recorded(capability: tuple[int, int], torch: tuple[int, int]) -> Recorded:
    """Problems that were recorded with a compute capability and the cuDNN of a PyTorch."""
    return of_library(capability, cudnn.BROUGHT.get(torch))


@functools.cache
def of_library(capability: tuple[int, int], minor: int | None) -> Recorded:
    """The same of a cuDNN 9, by its minor version; none where it was not recorded."""
    if capability not in capabilities() or minor not in _minors(capability):
        return {}
    return shipped.read(
        f"{_folder(capability)}/9.{minor}.json", functools.partial(_merged, capability)
    )


def _merged(capability: tuple[int, int], data: Any) -> Recorded:
    """Several recordings add up; of another library only what it changed is told."""
    if "since" in data:
        before, sizes = of_library(capability, _pair(data["since"])[1]), data["problems"]
        return {**before, **{name: {**before[name], **sizes[name]} for name in sizes}}
    known: Recorded = {}
    for entry in data["recorded"]:
        for problem, sizes in entry["problems"].items():
            known[problem] = {**sizes, **known.get(problem, {})}
    return known


def _folder(capability: tuple[int, int]) -> str:
    return f"{FOLDER}/{capability[0]}.{capability[1]}"


def _pair(version: str) -> tuple[int, int]:
    major, minor = version.split(".")
    return int(major), int(minor)
