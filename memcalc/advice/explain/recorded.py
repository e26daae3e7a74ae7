"""Reads a recorded memory snapshot and replays it under other allocator settings."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from memcalc.allocator import snapshot_reader
from memcalc.allocator.levels import Levels, highest
from memcalc.allocator.settings import parse_alloc_conf
from memcalc.allocator.what_if import HistoryError, follow, history, what_if
from memcalc.errors import UsageError
from memcalc.estimation.replays import UNLIMITED
from memcalc.records.display import Answer
from memcalc.units import MIB

_NOTHING = Levels(requested=0, allocated=0, active=0, reserved=0)


class WhatIf(msgspec.Struct, frozen=True, kw_only=True):
    """The recorded requests under one ``PYTORCH_ALLOC_CONF``."""

    conf: str
    peaks: Levels
    """The highest level of each rung, in bytes; up to the failure, where memory ran out."""
    retries: int
    """How often the cache had to be emptied to serve a request."""
    out_of_memory: str | None


class Recorded(Answer, msgspec.Struct, frozen=True, kw_only=True):
    """One device of a snapshot."""

    conf: str
    """``PYTORCH_ALLOC_CONF`` of the run, as the snapshot has it."""
    held: snapshot_reader.Breakdown
    """At the end of the recording."""
    entries: int
    older: int
    """Storages from before the recording began."""
    replayed: Levels | None
    """Peaks of the recording, every address of which the model gave out too."""
    not_replayed: str | None
    """Where and how the model and the recording part."""
    what_ifs: tuple[WhatIf, ...]


def read(
    path: Path, confs: Sequence[str] = (), *, device: int = 0, device_bytes: int = UNLIMITED
) -> Recorded:
    """Open a snapshot of ``torch.cuda.memory._dump_snapshot`` and answer what if.

    Nothing in it is run. ``confs`` are settings to try; none: expandable segments, and blocks of
    128 MiB kept whole. The questions are about a device of ``device_bytes``.

    Raises:
        UsageError: no snapshot, no such device, or settings that PyTorch does not know.
    """
    snapshot = snapshot_reader.read_snapshot(path)
    devices = len(snapshot.device_traces)
    if not 0 <= device < devices:
        hint = f"type 0 to {devices - 1}" if devices else "it has none at all"
        raise UsageError(f"{path} has no device {device}: {hint}.")
    conf = _conf(snapshot)
    grows = "expandable_segments:True"
    usual = (grows if grows not in conf else "", "max_split_size_mb:128")
    tried = dict.fromkeys((conf, *(confs or usual)))
    replayed, parted = None, None
    try:
        replayed = highest(_NOTHING, *follow(snapshot, parse_alloc_conf(conf), device=device))
    except HistoryError as error:
        parted = str(error)
    try:
        what_ifs = []
        for one in tried:
            found = what_if(snapshot, parse_alloc_conf(one), device_bytes, device=device)
            failed, why = found.out_of_memory, None
            if failed is not None:
                why = f"asked for {failed.asked:,} B with {failed.device_free:,} B free"
            what_ifs.append(
                WhatIf(conf=one, peaks=found.peaks, retries=found.retries, out_of_memory=why)
            )
    except ValueError as error:
        raise UsageError(f"{path} holds an impossible history: {error}.") from None
    return Recorded(
        conf=conf,
        held=snapshot_reader.breakdown(snapshot, device=device),
        entries=len(snapshot.device_traces[device]),
        older=history(snapshot, device=device).older,
        replayed=replayed,
        not_replayed=parted,
        what_ifs=tuple(what_ifs),
    )


def _conf(snapshot: snapshot_reader.Snapshot) -> str:
    settings = snapshot.allocator_settings or snapshot_reader.RecordedSettings()
    if settings.text is not None:
        return settings.text
    # A predicted snapshot, or one of an older PyTorch, has only what the text came to.
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
