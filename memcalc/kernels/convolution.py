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
    known = recorded(target.capability).get(target.torch, {})
    # What was recorded may choose any engine.
    by_batch = {} if target.cudnn_deterministic else known.get(text((image, *rest)), {})
    sizes = by_batch.get(str(batch))
    return cudnn.workspace(direction, problem, target) if sizes is None else sizes[direction]


def nearest(torch: tuple[int, int], capability: tuple[int, int]) -> tuple[int, int]:
    """The version that convolutions were recorded with there: this one, else the nearest."""
    known = versions(capability)
    return max((version for version in known if version <= torch), default=known[0])


def versions(capability: tuple[int, int]) -> list[tuple[int, int]]:
    """Those that convolutions were recorded with there; where none were, with any capability."""
    places = [capability] if capability in capabilities() else capabilities()
    return sorted({version for where in places for version in recorded(where)})


def text(problem: Any) -> str:
    """A problem but for its batch, as recordings name it."""
    return json.dumps(problem, separators=(",", ":"))


Recorded = dict[str, dict[str, list[int]]]
"""By problem but for its batch, then by batch: bytes by direction."""


@functools.cache
def capabilities() -> tuple[tuple[int, int], ...]:
    """Compute capabilities that convolutions were recorded for."""
    files = (shipped.configs() / "convolutions").glob("*.json")
    return tuple(sorted(_pair(file.stem) for file in files))


@functools.cache
def recorded(capability: tuple[int, int]) -> dict[tuple[int, int], Recorded]:
    """Recorded problems of a compute capability, by PyTorch's version."""
    if capability not in capabilities():
        return {}
    major, minor = capability
    return shipped.read(f"convolutions/{major}.{minor}.json", _merged)


def _merged(data: Any) -> dict[tuple[int, int], Recorded]:
    """Several recordings of one PyTorch add up; of another one what it changed may be told."""
    found: dict[tuple[int, int], Recorded] = {}
    for entry in data["recorded"]:
        for version in entry["torch"]:
            known = found.setdefault(_pair(version), {})
            for problem, sizes in entry["problems"].items():
                known[problem] = {**sizes, **known.get(problem, {})}
    for entry in data.get("changed", ()):
        before, sizes = found[_pair(entry["since"])], entry["problems"]
        now = {**before, **{name: {**before[name], **sizes[name]} for name in sizes}}
        found |= {_pair(version): now for version in entry["torch"]}
    return found


def _pair(version: str) -> tuple[int, int]:
    major, minor = version.split(".")
    return int(major), int(minor)
