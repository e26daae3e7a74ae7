"""The history in a snapshot, run again: under its own settings as proof, or under others.

PyTorch records requests, frees and what happened to segments, but not calls of ``empty_cache``, nor
how large the device is. Memory given back is therefore followed in the proof, and counts as a call
of ``empty_cache`` in the question what other settings would have done.
"""

from collections.abc import Iterator
from itertools import pairwise

import msgspec
from msgspec.structs import replace

from memcalc.allocator import caching, expandable
from memcalc.allocator.caching import CachingAllocator
from memcalc.allocator.levels import Levels
from memcalc.allocator.replay import Event, Op, Replay, replay
from memcalc.allocator.segments import SegmentRecord, segments
from memcalc.allocator.settings import AllocatorSettings
from memcalc.allocator.snapshot_reader import Entry, Snapshot
from memcalc.allocator.state import Block, DeviceMemory

_ANOTHER_STREAM = -1
"""Which stream lagged behind is not recorded; only that one did."""

_AMPLE = 1 << 48
"""A device nothing fails on: in the proof, what failed is in the recording."""

_TAKEN = ("segment_alloc", "segment_map")
_GIVEN = ("segment_free", "segment_unmap")


class HistoryError(Exception):
    """The model and the recording part here; the message says at which entry, and how."""


class History(msgspec.Struct, frozen=True, kw_only=True):
    """What a snapshot's trace says, as events of ``memcalc.allocator.replay``."""

    events: tuple[Event, ...]
    older: int
    """Storages from before the recording began; they are born first, in order of address."""


def history(snapshot: Snapshot, *, device: int = 0) -> History:
    """Turn the trace of one device into events.

    Frees that were completed late come back as late: replay them with ``streams_lag=True``.
    """
    reader = _Reader()
    for entry, following in pairwise([*snapshot.device_traces[device], Entry(action="end")]):
        reader.read(entry, following)
    for segment in snapshot.segments:
        if segment.device == device:
            reader.add_survivors(segment)
    births = [reader.older[address] for address in sorted(reader.older)]
    return History(events=(*births, *reader.events), older=len(births))


def what_if(
    snapshot: Snapshot,
    settings: AllocatorSettings,
    device_bytes: int,
    *,
    device: int = 0,
) -> Replay:
    """Run the recorded requests under other settings, or on a device of another size.

    If the history starts in the middle, older storages are born anew, packed in order of address:
    the result is then an estimate, and ``history(snapshot).older`` says of how many.
    """
    return replay(history(snapshot, device=device).events, settings, device_bytes, streams_lag=True)


def follow(snapshot: Snapshot, settings: AllocatorSettings, *, device: int = 0) -> Iterator[Levels]:
    """Run a whole history under the settings it was recorded with; yield the levels by entry.

    Raises:
        HistoryError: a block or a segment is not where the recording has it, or, at the end, what
            is left is not what the snapshot shows.
    """
    follower = _Follower(settings)
    trace = snapshot.device_traces[device]
    for number, (entry, following) in enumerate(pairwise([*trace, Entry(action="end")])):
        try:
            follower.step(entry, following)
        except HistoryError as error:
            raise HistoryError(f"entry {number} ({entry.action}): {error}") from None
        yield follower.allocator.levels()
    follower.check_end([segment for segment in snapshot.segments if segment.device == device])


def _is_late(entry: Entry, following: Entry) -> bool:
    """Whether a requested free had to wait for another stream."""
    return (following.action, following.addr) != ("free_completed", entry.addr)


class _Reader:
    """Gives every storage a key of its own, as addresses are used again and again."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.older: dict[int, Event] = {}
        self._key = 0
        self._live: dict[int, int] = {}
        self._late: dict[int, int] = {}

    def read(self, entry: Entry, following: Entry) -> None:
        action, address = entry.action, entry.addr
        if action == "alloc":
            self._key += 1
            self._live[address] = self._key
            self.events.append((self._key, entry.size, entry.stream))
        elif action == "free_requested":
            key = self._live.pop(entry.addr, None) or self._from_before(entry)
            if _is_late(entry, following):
                self._late[entry.addr] = key
                self.events.append((Op.USED_BY, key, _ANOTHER_STREAM))
            self.events.append((key, 0))
        elif action == "free_completed" and address in self._late:
            self.events.append((Op.PASSED, self._late.pop(address)))
        elif action in _GIVEN and self.events[-1:] != [(Op.EMPTY_CACHE, None)]:
            self.events.append((Op.EMPTY_CACHE, None))

    def add_survivors(self, segment: SegmentRecord) -> None:
        """Count storages that are alive at the end and whose birth was not seen."""
        address = segment.address
        for block in segment.blocks:
            if block.state == "active_allocated" and address not in self._live:
                self._key += 1
                self.older[address] = (self._key, block.requested_size, segment.stream)
            address += block.size

    def _from_before(self, entry: Entry) -> int:
        self._key += 1
        self.older[entry.addr] = (self._key, entry.size, entry.stream)
        return self._key


class _Follower:
    """Does what the recording says, and compares where everything comes to lie."""

    def __init__(self, settings: AllocatorSettings) -> None:
        own = replace(settings, gc_threshold=0.0, memory_fraction=1.0)
        self.allocator = CachingAllocator(own, DeviceMemory(_AMPLE), streams_lag=True)
        self._live: dict[int, Block] = {}
        self._late: dict[int, Block] = {}
        self._taken: list[tuple[str, int, int, int]] = []

    def step(self, entry: Entry, following: Entry) -> None:
        action, size, stream = entry.action, entry.size, entry.stream
        address = entry.addr
        if action in _TAKEN:
            self._taken.append((action, address, size, stream))
        elif action in _GIVEN:
            self._give_back(address)
        elif action == "alloc":
            self._allocate(address, size, stream)
        elif action == "free_requested":
            block = self._live.pop(address, None)
            if block is None:
                raise HistoryError("the history starts in the middle: this storage is older")
            if _is_late(entry, following):
                self.allocator.record_stream(block, _ANOTHER_STREAM)
                self._late[address] = block
            self.allocator.free(block)
        elif action == "free_completed" and address in self._late:
            self.allocator.complete(self._late.pop(address))

    def check_end(self, recorded: list[SegmentRecord]) -> None:
        """Compare the segments that are left with those of the snapshot."""
        modelled, expected = (
            [(seg.address, [(block.size, block.state) for block in seg.blocks]) for seg in found]
            for found in (segments(self.allocator), sorted(recorded, key=lambda seg: seg.address))
        )
        if modelled != expected:
            raise HistoryError("the end: other segments and blocks are left than the snapshot has")

    def _allocate(self, address: int, size: int, stream: int) -> None:
        self.allocator.device.expect(taken[1] for taken in self._taken)
        before = len(self.allocator.trace)
        block = self.allocator.allocate(size, stream)
        taken, self._taken = self._taken, []
        if self.allocator.trace[before:] != taken:
            raise HistoryError(f"the model takes {self.allocator.trace[before:]}, not {taken}")
        if block.address != address:
            raise HistoryError(f"the model hands out {block.address:#x}, not {address:#x}")
        self._live[address] = block

    def _give_back(self, address: int) -> None:
        head = self.allocator.heads.get(address)
        if head is not None and head.segment is None and not (head.busy or head.is_split):
            caching.release_segment(self.allocator, head)
            return
        for pool in (self.allocator.large, self.allocator.small):
            for block in pool:
                if block.address <= address < block.address + block.size:
                    expandable.unmap(self.allocator, block)
                    return
        raise HistoryError(f"the model has no free block at {address:#x} to give back")
