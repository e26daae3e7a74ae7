"""Run a stream of allocation events through the allocator and keep what a report needs.

An event is a plain tuple, so that a million of them cost little:

=====================================  ==========================================================
``(key, size)``, ``size`` > 0          storage ``key`` is born, on the default stream
``(key, size, stream)``                the same on another stream
``(key, 0)`` or ``(key, None)``        storage ``key`` dies
``(Op.MARK, name)``                    an interval of events begins: a phase, a step
``(Op.USED_BY, key, stream)``          another stream uses the storage (``Tensor.record_stream``)
``(Op.PASSED, key)``                   the other streams are done with a storage that died; without
                                       this they are by the next birth (see ``streams_lag``)
``(Op.EMPTY_CACHE, None)``             ``torch.cuda.empty_cache()``
``(Op.KEEP_POOL, stream)``             the stream is one within a private pool, which is kept
=====================================  ==========================================================
"""

from collections.abc import Hashable, Iterable
from enum import Enum
from typing import Any

import msgspec

from memcalc.allocator.caching import CachingAllocator, DeviceOutOfMemoryError, FailedRequest
from memcalc.allocator.levels import Levels, highest
from memcalc.allocator.settings import AllocatorSettings
from memcalc.allocator.state import Block, DeviceMemory

Event = tuple[Any, ...]


class Op(Enum):
    """What an event is, when it is not a storage's birth or death."""

    MARK = "mark"
    USED_BY = "used_by"
    PASSED = "passed"
    EMPTY_CACHE = "empty_cache"
    KEEP_POOL = "keep_pool"


class Interval(msgspec.Struct, frozen=True, kw_only=True):
    """What happened from one mark to the next."""

    name: Hashable
    peaks: Levels
    """The highest level of each rung, the one at the mark included; not simultaneous."""


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """What the caching allocator made of the events. All in bytes."""

    peaks: Levels
    end: Levels
    intervals: tuple[Interval, ...]
    retries: int
    """How often the cache had to be emptied to serve a request (``num_alloc_retries``)."""
    out_of_memory: FailedRequest | None
    """The request that found no memory; the replay ends there."""


def replay(
    events: Iterable[Event],
    settings: AllocatorSettings,
    device_bytes: int,
    *,
    available: int | None = None,
    streams_lag: bool = False,
) -> Replay:
    """Run events through the allocator.

    Args:
        events: see the table at the top of this module.
        settings: what ``PYTORCH_ALLOC_CONF`` says.
        device_bytes: bytes of the device.
        available: bytes of it the allocator can get: less the context and what others use.
            ``None``: all.
        streams_lag: a dead storage that other streams used is free only at its ``Op.PASSED``.

    Returns:
        Peaks and intervals; up to the failure, if memory ran out.

    Raises:
        ValueError: the events contradict themselves: a storage is born twice, or one dies that
            was not alive.
    """
    device = DeviceMemory(device_bytes, available=available)
    player = Player(CachingAllocator(settings, device, streams_lag=streams_lag))
    failure = player.play(events)
    player.close_interval()
    return Replay(
        peaks=player.peaks,
        end=player.allocator.levels(),
        intervals=tuple(player.intervals),
        retries=player.allocator.retries,
        out_of_memory=failure,
    )


def to_pools(allocator: CachingAllocator, what: Op, stream: int) -> None:
    """Tell an allocator that its cache is emptied, or of a private pool."""
    if what is Op.EMPTY_CACHE:
        allocator.empty_cache()
    else:
        allocator.keep_pool(stream)


class Player:
    """One pass over the events."""

    def __init__(self, allocator: CachingAllocator) -> None:
        self.allocator = allocator
        self.live: dict[Hashable, Block] = {}
        self.shared: dict[Hashable, Block] = {}
        self.intervals: list[Interval] = []
        self.peaks = allocator.levels()
        self._name: Hashable = None

    def play(self, events: Iterable[Event]) -> FailedRequest | None:
        """Run all events, or up to the one that fails."""
        allocate, free, live = self.allocator.allocate, self.allocator.free, self.live
        try:
            for index, event in enumerate(events):
                key = event[0]
                if key.__class__ is Op:
                    self._special(event)
                elif event[1]:
                    if key in live:
                        raise ValueError(f"storage {key!r} is born twice (event {index})")
                    live[key] = allocate(event[1]) if len(event) == 2 else allocate(*event[1:])
                elif (block := live.pop(key, None)) is not None:
                    free(block)
                else:
                    raise ValueError(f"storage {key!r} dies, but is not alive (event {index})")
        except DeviceOutOfMemoryError as error:
            return error.why
        return None

    def close_interval(self) -> None:
        """End the interval that runs, and fold its peaks into those of the whole.

        One without a name counts for the peaks alone.
        """
        peaks = self.allocator.stats.peaks()
        if self._name is not None:
            self.intervals.append(Interval(name=self._name, peaks=peaks))
        self.peaks = highest(self.peaks, peaks)
        self.allocator.stats.reset_peaks()

    def _special(self, event: Event) -> None:
        if event[0] is Op.MARK:
            self.close_interval()
            self._name = event[1]
        elif event[0] is Op.USED_BY:
            block = self.shared[event[1]] = self.live[event[1]]
            self.allocator.record_stream(block, event[2])
        elif event[0] is Op.PASSED:
            self.allocator.complete(self.shared.pop(event[1]))
        else:
            to_pools(self.allocator, *event)
