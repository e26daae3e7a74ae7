"""Reads a recorded memory snapshot and replays it under other allocator settings."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import msgspec

from memcalc.engine.alloc_conf import parse_alloc_conf, without_fraction
from memcalc.engine.simulated_gpu import MEMORY
from memcalc.errors import EstimateError, UsageError
from memcalc.files.snapshot_reader import (
    Breakdown,
    Entry,
    RecordedSettings,
    SegmentRecord,
    Snapshot,
    breakdown,
    read_snapshot,
)
from memcalc.records.display import Answer
from memcalc.records.levels import Levels
from memcalc.records.replay import Call, Card, Play, Replay, Wanted
from memcalc.units import MIB

_TAKEN = ("segment_alloc", "segment_map")
_GIVEN = ("segment_free", "segment_unmap")
_GROWS = "expandable_segments:True"


class WhatIf(msgspec.Struct, frozen=True, kw_only=True):
    """The recorded requests under one ``PYTORCH_ALLOC_CONF``."""

    conf: str
    peaks: Levels
    """The highest level of each rung, in bytes; up to the failure, where memory ran out."""
    retries: int
    """How often the cache had to be emptied to serve a request."""
    out_of_memory: str | None


class Recorded(Answer, msgspec.Struct, frozen=True, kw_only=True):
    """A device of a snapshot."""

    conf: str
    """``PYTORCH_ALLOC_CONF`` of the run, as the snapshot has it."""
    held: Breakdown
    """At the end of the recording."""
    entries: int
    older: int
    """Storages from before the recording began."""
    replayed: Levels | None
    """Peaks of the recording: a replay under its settings reaches all that the recording tells."""
    not_replayed: str | None
    """Why there is no replay, or where it and the recording part."""
    what_ifs: tuple[WhatIf, ...]
    """None without a PyTorch that can replay."""


def read(
    path: Path,
    play: Play,
    confs: Sequence[str] = (),
    *,
    device: int = 0,
    memory: int | None = None,
) -> Recorded:
    """Replay a snapshot of ``torch.cuda.memory._dump_snapshot`` under other allocator settings.

    Nothing in it is run. ``confs`` are settings to try; none: expandable segments, and blocks of
    128 MiB kept whole. ``memory``: bytes of the device; None: a device on which nothing is ever
    full.

    Raises:
        UsageError: no snapshot, no such device, or settings that PyTorch does not know.
    """
    snapshot = read_snapshot(path)
    devices = len(snapshot.device_traces)
    if not 0 <= device < devices:
        hint = f"type 0 to {devices - 1}" if devices else "it has none at all"
        raise UsageError(f"{path} has no device {device}: {hint}.")
    conf = _find_conf(snapshot)
    usual = (_GROWS if _GROWS not in conf else "", "max_split_size_mb:128")
    tried = [parse_alloc_conf(one).text for one in dict.fromkeys((conf, *(confs or usual)))]
    calls, older = history(snapshot, device)
    cards = [_make_card(conf, None), *(_make_card(one, memory) for one in tried)]
    held = breakdown(snapshot, device=device)
    replays: dict[Card, Replay] = {}
    try:
        asked = list(dict.fromkeys(cards))
        replays = dict(zip(asked, play(calls, asked, Wanted()), strict=True))
        failed = _difference(snapshot.device_traces[device], older, held, replays[cards[0]])
    except UsageError as error:
        raise UsageError(f"{path} holds an impossible history: {error}.") from None
    except EstimateError as error:
        failed = str(error).rstrip(".")
    return Recorded(
        conf=conf,
        held=held,
        entries=len(snapshot.device_traces[device]),
        older=older,
        replayed=replays[cards[0]].peaks if failed is None else None,
        not_replayed=failed,
        what_ifs=tuple(
            _summarize_replay(one, replays[card])
            for one, card in zip(tried, cards[1:], strict=True)
            if card in replays
        ),
    )


def history(snapshot: Snapshot, device: int = 0) -> tuple[list[Call], int]:
    """Turn a snapshot's trace of one device into calls to replay, and count older storages.

    Older storages are born first, in order of address. PyTorch records requests, frees and changes
    of segments, but not calls of ``empty_cache``: memory that was given back counts as one.
    """
    reader = _TraceReader()
    for entry, following in pairwise([*snapshot.device_traces[device], Entry(action="end")]):
        reader.read(entry, following)
    for segment in snapshot.segments:
        if segment.device == device:
            reader.add_survivors(segment)
    births = [reader.older[address] for address in sorted(reader.older)]
    return [*births, *reader.calls], len(births)


class _TraceReader:
    """Turns allocator trace entries into calls, with a unique key for each storage."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.older: dict[int, Call] = {}
        self._key = 0
        self._live: dict[int, int] = {}
        self._late: dict[int, int] = {}
        self._streams: dict[object, int] = {0: 0}

    def read(self, entry: Entry, following: Entry) -> None:
        """Append the calls of one trace entry; ``following`` is the entry after it."""
        action, address = entry.action, entry.addr
        if action == "alloc":
            self._live[address] = self._add_allocation(self.calls, entry.size, entry.stream)
        elif action == "free_requested":
            key = self._live.pop(address, None)
            if key is None:
                key = self._add_older_allocation(address, entry.size, entry.stream)
            if (following.action, following.addr) != ("free_completed", address):
                # Another stream was behind; which one is not recorded.
                self._late[address] = key
                self.calls.append(("used_by", key, self._number_stream(object())))
            self.calls.append((key, 0))
        elif action == "free_completed" and address in self._late:
            self.calls.append(("passed", self._late.pop(address)))
        elif action in _GIVEN and self.calls[-1:] != [("empty_cache",)]:
            self.calls.append(("empty_cache",))

    def add_survivors(self, segment: SegmentRecord) -> None:
        """Add the live blocks of a segment whose allocation is not in the trace."""
        address = segment.address
        for block in segment.blocks:
            if block.state == "active_allocated" and address not in self._live:
                self._add_older_allocation(address, block.requested_size, segment.stream)
            address += block.size

    def _add_older_allocation(self, address: int, size: int, stream: int) -> int:
        """Record a storage allocated before the recording began; return its key."""
        births: list[Call] = []
        key = self._add_allocation(births, size, stream)
        (self.older[address],) = births
        return key

    def _add_allocation(self, births: list[Call], size: int, stream: int) -> int:
        """Append an allocation to ``births`` and return its new key."""
        self._key += 1
        births.append((self._key, max(size, 1), self._number_stream(stream)))
        return self._key

    def _number_stream(self, known: object) -> int:
        """Return a small number for a CUDA stream, 0 for the default stream."""
        return self._streams.setdefault(known, len(self._streams))


def _make_card(conf: str, memory: int | None) -> Card:
    """Return the card to replay on: of this many bytes, or unlimited for None."""
    if memory is None:
        return Card(conf=without_fraction(conf), capacity=MEMORY)
    return Card(conf=conf, capacity=memory, room=memory)


def _summarize_replay(conf: str, found: Replay) -> WhatIf:
    """Return the peaks, retries and out-of-memory error of a replay under a setting."""
    failed, why = found.refused, None
    if failed is not None:
        why = f"asked for {failed.asked:,} B with {failed.free:,} B free"
    return WhatIf(conf=conf, peaks=found.peaks, retries=found.retries, out_of_memory=why)


def _difference(
    entries: Sequence[Entry], older: int, held: Breakdown, replay: Replay
) -> str | None:
    """Say where the recording and a replay under its own settings differ, or return None."""
    if older:
        return f"the history starts in the middle: {older} storages are older"
    requested = _find_peak(entries, ("alloc",), ("free_completed",))
    reserved = _find_peak(entries, _TAKEN, _GIVEN)
    figures = (
        ("most requested", requested, replay.peaks.requested),
        ("most reserved", reserved, replay.peaks.reserved),
        ("allocated at the end", held.levels.allocated, replay.end.allocated),
        ("reserved at the end", held.levels.reserved, replay.end.reserved),
    )
    parts = [
        f"{name}: {own:,} B, and {new:,} B replayed" for name, own, new in figures if own != new
    ]
    return "; ".join(parts) or None


def _find_peak(entries: Sequence[Entry], more: Sequence[str], less: Sequence[str]) -> int:
    """Return the highest running total of entry sizes: ``more`` actions add, ``less`` subtract."""
    level = peak = 0
    for entry in entries:
        level += entry.size if entry.action in more else -entry.size if entry.action in less else 0
        peak = max(peak, level)
    return peak


def _find_conf(snapshot: Snapshot) -> str:
    """Return ``PYTORCH_ALLOC_CONF`` of the recorded run, rebuilt from values if needed."""
    settings = snapshot.allocator_settings or RecordedSettings()
    if settings.text is not None:
        return settings.text
    # A snapshot of an older PyTorch has only what the text came to.
    parts = ["expandable_segments:True"] if settings.expandable_segments else []
    if settings.max_split_size > 0:
        parts.append(f"max_split_size_mb:{settings.max_split_size // MIB}")
    if settings.garbage_collection_threshold:
        parts.append(f"garbage_collection_threshold:{settings.garbage_collection_threshold}")
    steps = settings.roundup_power2_divisions
    if any(steps.values()):
        listed = ",".join(f"{size}:{count}" for size, count in steps.items())
        parts.append(f"roundup_power2_divisions:[{listed}]")
    return ",".join(parts)
