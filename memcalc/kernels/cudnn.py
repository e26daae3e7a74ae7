"""Asks cuDNN itself what a convolution takes, where the library is installed; no GPU is needed.

cuDNN plans for a device that it is told of (``CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION``, since
9.8): its heuristics name engines for a problem, and the first that makes a plan is what PyTorch
runs (aten/src/ATen/native/cudnn/Conv_v8.cpp, ``try_configs``), with ``torch.backends.cudnn``'s
``benchmark`` off and ``allow_tf32`` on. cuBLASLt must be there too: some engines are its own, and
without it the choice falls on others.

Answers take about 2 ms; the installed version answers for the PyTorch that brings it along, and for
any other where it was named (``MEMCALC_CUDNN``). One before 9.8 is not asked.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from memcalc.kernels.cudnn_descriptors import ARGUMENTS, Error
from memcalc.kernels.cudnn_planning import OLDEST, planned
from memcalc.kernels.target import Target
from memcalc.version import OLDEST_TORCH

FOLDERS = "MEMCALC_CUDNN"
"""Environment variable: folders with libcudnn.so.9 and libcublasLt, searched first."""
BROUGHT = {
    (2, 8): 10,
    (2, 9): 10,
    (2, 10): 10,
    (2, 11): 20,
    (2, 12): 20,
    (2, 13): 20,
    (2, 14): 24,
    (2, 15): 26,
}
"""Which cuDNN 9 comes with a PyTorch, by its wheels' metadata (those of PyPI). 2.11 has 9.19, which
plans each of the 324,381 that are recorded as 9.20 does."""
_UNASKED = {(10, 0): 10}
"""By capability, the last cuDNN 9 that ends the process when it is asked of it (9.10.2)."""
_LIBRARIES = (("libcublasLt.so.13", "libcublasLt.so.12"), ("libcudnn.so.9",))
_PACKAGES = ("nvidia.cu13", "nvidia.cublas", "nvidia.cudnn")


def version() -> str | None:
    """Version of the library that would answer, such as ``9.20.0``; ``None``: there is none."""
    library = _library()
    if library is None:
        return None
    number = library.cudnnGetVersion()
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


def answers_for(torch: tuple[int, int]) -> bool:
    """There is a library, and it is the one that comes with this PyTorch, or was named for it.

    For a PyTorch older than any that was recorded, it has to be the one that comes with it.
    """
    library = _library()
    if library is None:
        return False
    minor = _minor(library)
    brought = BROUGHT.get(torch, minor if torch > max(BROUGHT) else None)
    named = FOLDERS in os.environ and torch >= OLDEST_TORCH
    return named or brought == (20 if minor == 19 else minor)


def _minor(library: ctypes.CDLL) -> int:
    return int(library.cudnnGetVersion()) // 100 % 100


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
    if _minor(library) <= _UNASKED.get(target.capability, 0):
        return ()
    try:
        return tuple(itertools.islice(planned(library, direction, problem, target), most))
    except Error:
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
        getattr(found, f"cudnnBackend{name}").argtypes = ARGUMENTS[name]
    found.cudnnGetVersion.restype = ctypes.c_size_t
    return found if found.cudnnGetVersion() >= OLDEST else None


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
