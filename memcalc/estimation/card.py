"""The memory of a simulated GPU that a process sees."""

from typing import NamedTuple

from memcalc.catalog import contexts
from memcalc.catalog.gpus import Gpu
from memcalc.records.replay import UNLIMITED


class CardMemory(NamedTuple):
    """The memory of a simulated GPU, in bytes."""

    kept: int
    """Bytes of the driver, which NVML counts and CUDA does not offer."""
    outside: int
    """Bytes that the process holds outside the allocator."""
    room: int
    """Bytes free for the allocator."""

    def variables(self) -> dict[str, str]:
        """Return the environment variables that give the stub driver these sizes."""
        return {"MEMCALC_STUB_KEPT": str(self.kept), "MEMCALC_STUB_OUTSIDE": str(self.outside)}


def card_memory(gpu: Gpu | None) -> CardMemory:
    """Return how a GPU's memory divides between driver, context and allocator."""
    context = contexts.ranges(gpu).total
    outside = context.likely if context.likely is not None else context.low
    if gpu is None:
        return CardMemory(0, outside, UNLIMITED)
    return CardMemory((gpu.nvml_memory or gpu.memory) - gpu.memory, outside, gpu.memory - outside)
