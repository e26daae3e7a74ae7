"""Calls of the allocator, and what it makes of them on another card: no PyTorch is needed here.

A call is a plain tuple, so that a million of them cost little and cross a process as JSON:

=====================================  ==========================================================
``(key, size)``, ``size`` > 0          storage ``key`` is born, on the default stream
``(key, size, stream)``                the same on another stream
``(key, 0)``                           storage ``key`` dies
``("mark",)``                          an interval of calls begins: a phase, a step
``("used_by", key, stream)``           another stream uses the storage (``Tensor.record_stream``)
``("passed", key)``                    that stream, which nothing else uses, is done with a storage
                                       that died; without this it is by the next birth
``("empty_cache",)``                   ``torch.cuda.empty_cache()``
``("keep_pool", stream)``              the stream is one within a private pool (``MemPool``)
=====================================  ==========================================================
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from memcalc.records.levels import Levels

Call = Sequence[Any]
UNLIMITED = 1 << 50
"""Bytes of a card on which nothing is ever full."""


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """A card and the allocator's settings on it."""

    conf: str = ""
    """``PYTORCH_ALLOC_CONF``."""
    capacity: int
    """Bytes of the card, to which fractions refer."""
    room: int = UNLIMITED
    """Bytes that the allocator can get; by default nothing is ever full."""


class Refused(msgspec.Struct, frozen=True, kw_only=True):
    """The request that found no memory, in bytes."""

    asked: int
    """Asked of the device: "Tried to allocate" in PyTorch's message."""
    free: int


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of the calls: of all, or of those before one that failed."""

    peaks: Levels
    end: Levels
    intervals: tuple[Levels, ...]
    """Peaks from each mark to the next, the levels at the mark included."""
    retries: int
    """How often the cache had to be emptied to serve a request (``num_alloc_retries``)."""
    refused: Refused | None = None
    """The request that failed; the replay ends there."""
    levels: tuple[Levels, ...] = ()
    """After each birth and death from the first that was asked for."""
    snapshot: dict[str, Any] | None = None
    """Of ``torch.cuda.memory._snapshot``, where it was asked for."""


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """The extra records of a replay, beside its peaks."""

    levels: int | None = None
    """Number of the birth or death from which on levels are kept; ``None``: none are."""
    snapshot: bool = False


Play = Callable[[Sequence[Call], Sequence[Card], Wanted], tuple[Replay, ...]]
"""Replays calls on each of some cards."""
