"""The memory of a simulated GPU that a process finds."""

from typing import NamedTuple

from memcalc.catalog import contexts
from memcalc.catalog.gpus import Gpu
from memcalc.records.replay import UNLIMITED


class Card(NamedTuple):
    """The memory of a simulated GPU, in bytes."""

    kept: int
    """The driver's own, which NVML counts and CUDA does not offer."""
    outside: int
    """Held by the process outside the allocator."""
    room: int
    """Free for the allocator."""

    def variables(self) -> dict[str, str]:
        """Return the settings of the stub driver for it."""
        return {"MEMCALC_STUB_KEPT": str(self.kept), "MEMCALC_STUB_OUTSIDE": str(self.outside)}


def card_of(gpu: Gpu | None) -> Card:
    """Return the memory of a GPU; ``None``: one on which nothing is ever full."""
    context = contexts.ranges(gpu).total
    outside = context.likely if context.likely is not None else context.low
    if gpu is None:
        return Card(0, outside, UNLIMITED)
    return Card((gpu.nvml_memory or gpu.memory) - gpu.memory, outside, gpu.memory - outside)
