"""A prediction as a memory snapshot: what ``torch.cuda.memory._snapshot()`` would have returned.

The result is made of dicts, lists, strings, ints and floats only, so that
https://pytorch.org/memory_viz and ``torch.cuda._memory_viz`` open it. Instead of Python frames it
shows what the prediction knows of a storage; the name of the phase stands in ``user_metadata``.

Source: ``torch/cuda/memory.py`` (``_snapshot``, ``_dump_snapshot``) and snapshots of torch 2.13.
"""

import pickle
from collections.abc import Callable, Hashable, Iterable, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import asdict

from memcalc.allocator.caching import CachingAllocator, DeviceOutOfMemoryError
from memcalc.allocator.replay import Event, Op, to_pools
from memcalc.allocator.segments import DEFAULT_POOL, segments
from memcalc.allocator.settings import UNLIMITED, AllocatorSettings
from memcalc.allocator.state import Block, DeviceMemory, TraceEntry
from memcalc.files.artifact import write_bytes

Frame = tuple[str, int, str]
"""File, line and name, innermost first: for a prediction, the module, 0 and the op."""


def predicted_snapshot(
    events: Iterable[Event],
    settings: AllocatorSettings,
    device_bytes: int,
    *,
    frames: Callable[[Hashable], Sequence[Frame]] = lambda key: (),
) -> dict[str, Any]:
    """Replay events and write down what PyTorch's recorder would have.

    Streams never lag, so ``Op.PASSED`` changes nothing. ``frames`` gives what to show for a
    storage, by its key. If memory runs out the snapshot ends with the ``oom`` entry.
    """
    allocator = CachingAllocator(settings, DeviceMemory(device_bytes))
    writer = _SnapshotWriter(allocator, frames)
    try:
        for event in events:
            writer.play(event)
    except DeviceOutOfMemoryError:
        writer.take_over(())
    return {
        "segments": [
            {**asdict(segment), "blocks": [asdict(block) for block in segment.blocks]}
            for segment in segments(allocator, writer.shown)
        ],
        "device_traces": [writer.entries],
        "allocator_settings": _settings(settings),
        "external_annotations": [],
    }


def save_snapshot(snapshot: dict[str, Any], path: Path) -> None:
    """Write a snapshot as ``torch.cuda.memory._dump_snapshot`` does.

    Raises:
        UsageError: it cannot be written.
    """
    write_bytes(path, pickle.dumps(snapshot, protocol=4))


class _SnapshotWriter:
    """Plays events and writes an entry for everything the allocator does. One event is 1 us."""

    def __init__(
        self, allocator: CachingAllocator, frames: Callable[[Hashable], Sequence[Frame]]
    ) -> None:
        self.allocator = allocator
        self.entries: list[dict[str, Any]] = []
        self._frames = frames
        self._live: dict[Hashable, Block] = {}
        self.shown: dict[int, list[dict[str, Any]]] = {}
        """Frames of the block at an address that is in use."""
        self._taken = 0
        self._time = 0
        self._phase = ""

    def play(self, event: Event) -> None:
        self._time += 1
        key = event[0]
        if key is Op.MARK:
            self._phase = event[1]
        elif key is Op.USED_BY:
            self.allocator.record_stream(self._live[event[1]], event[2])
        elif key is Op.PASSED:
            return
        elif isinstance(key, Op):
            to_pools(self.allocator, *event)
            self.take_over(())
        elif event[1]:
            self._born(key, *event[1:])
        else:
            self._dies(key)

    def take_over(self, frames: Sequence[Frame]) -> None:
        """Turn what the allocator has noted since the last time into entries."""
        for action, address, size, stream in self.allocator.trace[self._taken :]:
            shown = self.shown.pop(address, []) if action == "free_completed" else _show(frames)
            self._add((action, address, size, stream), shown)
        self._taken = len(self.allocator.trace)

    def _born(self, key: Hashable, size: int, stream: int = 0) -> None:
        frames = self._frames(key)
        block = self._live[key] = self.allocator.allocate(size, stream)
        self.take_over(frames)
        shown = self.shown[block.address] = _show(frames)
        self._add(("alloc", block.address, size, stream), shown)

    def _dies(self, key: Hashable) -> None:
        block = self._live.pop(key)
        address, requested, stream = block.address, block.requested, block.stream
        self.allocator.free(block)
        shown = self.shown[address]
        self._add(("free_requested", address, requested, stream), shown)
        if not block.waiting:
            self._add(("free_completed", address, requested, stream), shown)
            del self.shown[address]

    def _add(self, entry: TraceEntry, shown: list[dict[str, Any]]) -> None:
        action, address, size, stream = entry
        self.entries.append(
            {
                "action": action,
                "device_free" if action == "oom" else "addr": address,
                "size": size,
                "stream": stream,
                "time_us": self._time,
                "frames": shown,
                "compile_context": "N/A",
                "user_metadata": self._phase,
                "pool_id": DEFAULT_POOL,
            }
        )


def _show(frames: Sequence[Frame]) -> list[dict[str, Any]]:
    return [{"filename": name, "line": line, "name": op} for name, line, op in frames]


def _settings(settings: AllocatorSettings) -> dict[str, Any]:
    limit = settings.max_split
    divisions = {str(1 << at): steps for at, steps in enumerate(settings.divisions)}
    return {
        "max_split_size": -1 if limit == UNLIMITED else limit,
        "garbage_collection_threshold": settings.gc_threshold,
        "expandable_segments": settings.expandable,
        "roundup_power2_divisions": divisions,
    }
