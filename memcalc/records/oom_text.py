"""The message of PyTorch when GPU memory runs out."""

from typing import Literal

import msgspec

from memcalc.records.display import Answer
from memcalc.records.trace import Storage

Gap = Literal["fragmentation", "limit", "other processes", "too large"]


class FoundRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The request of a simulated run that is the one which failed."""

    storage: Storage
    before: int
    """Requested bytes that the simulated run held when it asked."""


class SimulatedAgain(msgspec.Struct, frozen=True, kw_only=True):
    """The simulated run of the program whose message it is."""

    command: str
    needs: int
    """Bytes of the process at its peak, on a GPU that is large enough; reserved bytes where a
    context is not known."""
    request: FoundRequest | None
    """None: no request of the run has the size that failed."""


class OomText(Answer, msgspec.Struct, frozen=True, kw_only=True):
    """A message of ``torch.OutOfMemoryError``; sizes in bytes, as exactly as the text says.

    A figure is ``None`` where a release of PyTorch does not say it.
    """

    asked: int
    """The request that failed."""
    gpu: int
    total: int
    free: int
    allocated: int
    """By tensors of this process."""
    cached: int
    """Reserved by this process's allocator and held by no tensor."""
    process: int | None
    """All that this process holds, its context and libraries too."""
    allowed: int | None
    """What ``set_per_process_memory_fraction`` leaves; ``None``: no limit was set."""
    outside: int
    """Other memory of the GPU: other processes, and this one's context where ``process`` is
    unknown."""
    gap: Gap
    """Why the request failed."""
    line: str | None
    """``train.py:42``, the last line of a traceback before it that is no package's."""
    script: str | None
    """The first file of that traceback."""
    times: int
    """The number of such messages in the text; this is the last."""
    run: SimulatedAgain | None = None
    """None: the program was not simulated."""
