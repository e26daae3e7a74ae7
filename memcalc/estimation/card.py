"""What a simulated process finds of its GPU."""

from typing import NamedTuple

from memcalc.catalog import contexts
from memcalc.catalog.gpus import Gpu
from memcalc.records.replay import UNLIMITED


class Card(NamedTuple):
    """What a process finds of its GPU, in bytes."""

    kept: int
    """What the driver keeps of the card, which NVML counts and CUDA does not offer."""
    outside: int
    """What the process holds outside the allocator."""
    room: int
    """What the allocator may take."""

    def variables(self) -> dict[str, str]:
        """Return the settings of the stub driver for it."""
        return {"MEMCALC_STUB_KEPT": str(self.kept), "MEMCALC_STUB_OUTSIDE": str(self.outside)}


def card_of(gpu: Gpu | None) -> Card:
    """A named GPU has the room that its context leaves; without one nothing is ever full."""
    context = contexts.ranges(gpu).total
    outside = context.likely if context.likely is not None else context.low
    if gpu is None:
        return Card(0, outside, UNLIMITED)
    return Card((gpu.nvml_memory or gpu.memory) - gpu.memory, outside, gpu.memory - outside)
