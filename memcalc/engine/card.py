"""The simulated GPU: what the stub driver says of the card that a question names."""

from __future__ import annotations

import os

from memcalc.catalog.capabilities import ARCHITECTURES
from memcalc.catalog.gpus import Gpu
from memcalc.engine.stub import load as stub
from memcalc.kernels.target import Target
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
