"""The simulated GPU: the properties that the stub driver reports."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from memcalc.catalog.capabilities import ARCHITECTURES
from memcalc.catalog.gpus import Gpu
from memcalc.engine.stub import load as stub
from memcalc.engine.target import Target
from memcalc.errors import EstimateError
from memcalc.units import GIB

_A100 = ("NVIDIA A100-SXM4-80GB", 80 * GIB)
_UNLIMITED = 1 << 50


def insert(gpu: Gpu | None, target: Target, *, room: int = _UNLIMITED) -> None:
    """Let this process see this GPU, before CUDA begins.

    Args:
        gpu: which; ``None``: an A100.
        target: its compute capability and multiprocessors.
        room: bytes that allocations may take of it; by default nothing is ever full, so that a
            run tells what it needs.
    """
    os.environ.update(settings(gpu, target, room=room))
    stub.reload()


@contextlib.contextmanager
def asked_without_cuda(target: Target) -> Iterator[None]:
    """Answer what packages ask of the GPU as they are imported, and do not begin CUDA for it.

    PyTorch keeps what the driver says of a GPU for the life of a process, and the process that
    prepares programs prepares them for several GPUs. bitsandbytes 0.50 asks as it is imported.
    """
    import torch

    asked = torch.cuda.get_device_capability
    torch.cuda.get_device_capability = lambda device=None: target.capability
    try:
        yield
    finally:
        torch.cuda.get_device_capability = asked


def check(target: Target) -> None:
    """See that PyTorch works with the card that was inserted.

    Raises:
        EstimateError: CUDA had begun before.
    """
    import torch

    found = torch.cuda.get_device_properties(0)
    seen = (found.major, found.minor), found.multi_processor_count
    if seen != (target.capability, target.multiprocessors):
        raise EstimateError(
            "A module that this model imports initialized CUDA before its GPU was "
            "known: ask about it "
            "in a fresh Python."
        )


def settings(gpu: Gpu | None, target: Target, *, room: int = _UNLIMITED) -> dict[str, str]:
    """What ``insert`` sets in the environment."""
    name, memory = _A100 if gpu is None else (gpu.driver_name, gpu.memory)
    architecture = ARCHITECTURES[target.capability]
    told = {
        "CAPABILITY": 10 * target.capability[0] + target.capability[1],
        "PROCESSORS": target.multiprocessors,
        "THREADS": architecture.threads,
        "SHARED": architecture.shared_memory,
        "SHARED_OF_BLOCK": architecture.shared_memory_of_block,
        "MEMORY": memory,
        "ROOM": room,
        "NAME": name,
    }
    return {f"MEMCALC_STUB_{key}": str(value) for key, value in told.items()}
