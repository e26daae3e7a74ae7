"""Functions of a build with CUDA that this build has not, and that are not simulated."""

from __future__ import annotations

import sys
from typing import Any

import torch

from memcalc.errors import EstimateError
from memcalc.script.patches import Patches

_BEGINNINGS = ("_cuda_", "_nccl_")
_ON_A_GPU = (
    *("_cuda_cudaCachingAllocator_raw_alloc", "_cuda_cudaCachingAllocator_raw_delete"),
    *("_cuda_changeCurrentAllocator", "_cuda_jiterator_compile_and_launch_kernel"),
)
"""What a build with CUDA has, and runs on a GPU alone."""


def install(patches: Patches) -> None:
    """Say which function of PyTorch's a script has called in vain, and what to do."""
    patches.set(torch._C, "__getattr__", _of_a_build_with_cuda)
    for name in _ON_A_GPU:
        patches.set(torch._C, name, _refused)
    patches.set(torch._C, "_cuda_cudaCachingAllocator_is_enabled", lambda: True)
    patches.set(torch._C, "_cuda_cudaCachingAllocator_enable", _enable_cache)


def _of_a_build_with_cuda(name: str) -> Any:
    if not name.startswith(_BEGINNINGS):
        raise AttributeError(f"module 'torch._C' has no attribute {name!r}")
    return _refused


def _enable_cache(wanted: bool) -> None:
    if not wanted:
        _refused()


def _refused(*_: Any, **__: Any) -> None:
    caller = sys._getframe(1)
    while caller.f_globals["__name__"] == __name__ and caller.f_back is not None:
        caller = caller.f_back
    raise EstimateError(
        f"The script calls {caller.f_globals['__name__']}.{caller.f_code.co_name}, "
        "which is not simulated: use --backend driver."
    )
