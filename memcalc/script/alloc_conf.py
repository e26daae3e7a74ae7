"""Settings of the allocator that a script gives itself, before it first uses the GPU."""

from __future__ import annotations

import os
from collections.abc import Callable

import torch

from memcalc.allocator.settings import AllocatorSettings, Version, parse_alloc_conf
from memcalc.errors import UsageError
from memcalc.script.gpu import GpuMemory
from memcalc.script.patches import Patches

_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""The first that is set is read (c10/cuda/CUDAAllocatorConfig.h, ``instance``, 2.13)."""
_SETTERS = (
    "_accelerator_setAllocatorSettings",
    "_cuda_cudaCachingAllocator_set_allocator_settings",
)
_TOO_LATE = (
    "settings of the allocator that the script changed after it began to use it are not followed"
)


def install(
    patches: Patches,
    memory: GpuMemory,
    torch_version: Version,
    known: Callable[[str], None],
    say: Callable[[str], None],
) -> None:
    """Read them when the allocator is first asked for something, as PyTorch does.

    Args:
        patches: what is changed.
        memory: whose allocator it is.
        torch_version: of the run.
        known: told what was read.
        say: told what is not followed.
    """
    given: list[str] = []

    def begin() -> None:
        found = given[-1:] or [os.environ[name] for name in _VARIABLES if name in os.environ]
        if found and found[0]:
            memory.use(_parsed(found[0], torch_version))
            known(found[0])

    def change(conf: str) -> None:
        _parsed(conf, torch_version)
        if memory.begins is None:
            say(_TOO_LATE)
        given.append(conf)

    memory.begins = begin
    for name in _SETTERS:
        patches.set(torch._C, name, change)


def _parsed(conf: str, version: Version) -> AllocatorSettings:
    try:
        return parse_alloc_conf(conf, torch=version)
    except UsageError as error:
        # PyTorch too says so when it reads them.
        raise RuntimeError(str(error)) from None
