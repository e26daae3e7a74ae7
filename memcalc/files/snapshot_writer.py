"""Writes the snapshot of a replay for pytorch.org/memory_viz, labelled with what a trace knows.

In place of Python frames stand the module and the operator, and under them the component and the
phase; in place of ``user_metadata`` the phase in which something happened. The file is made of
dicts, lists, strings, ints and floats only, as ``torch.cuda.memory._dump_snapshot`` makes it.
"""

import functools
import pickle
from pathlib import Path
from typing import Any

from memcalc.files.artifact import write_bytes
from memcalc.records.trace import Storage, Trace, walk

_Frames = list[dict[str, Any]]


def save_snapshot(snapshot: dict[str, Any], trace: Trace, path: Path) -> None:
    """Write a replay's ``torch.cuda.memory._snapshot`` as a pickle, labelled from the trace.

    Raises:
        UsageError: it cannot be written.
    """
    shown = _label_entries(snapshot["device_traces"][0], trace)
    for segment in snapshot["segments"]:
        segment["segment_pool_id"] = tuple(segment["segment_pool_id"])
        for block in segment["blocks"]:
            block["frames"] = shown.get(block["address"], [])
    write_bytes(path, pickle.dumps(snapshot, protocol=4))


def _label_entries(entries: list[dict[str, Any]], trace: Trace) -> dict[int, _Frames]:
    """Label a snapshot's trace entries; return the frames of live blocks by address.

    An event of the trace is one microsecond.
    """
    events = list(walk(trace))
    frames: dict[int, _Frames] = {}
    time = 0
    for entry in entries:
        action, address = entry["action"], entry.get("addr", 0)
        mark, event, storage = events[min(time, len(events) - 1)]
        if action == "alloc":
            shown = frames[address] = _make_frames(storage)
        elif action == "free_completed":
            shown = frames.pop(address, [])
        elif action == "free_requested":
            shown = frames[address]
        else:
            # A segment is taken, or given back, for the storage that is born next.
            shown = _make_frames(storage) if event >= 0 else []
        time += action in ("alloc", "free_requested")
        entry.update(
            time_us=time, frames=shown, user_metadata=f"step {mark.step} {mark.phase.value}"
        )
        if "pool_id" in entry:
            entry["pool_id"] = tuple(entry["pool_id"])
    return frames


@functools.cache
def _make_frames(storage: Storage) -> _Frames:
    place = storage.module or f"({storage.phase.value})"
    made = f"made in {storage.phase.value} of step {storage.step}"
    return [
        {"filename": place, "line": 0, "name": f"{storage.op} {storage.dtype}".rstrip()},
        {"filename": storage.component.value, "line": 0, "name": made},
    ]
