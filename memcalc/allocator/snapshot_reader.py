"""A recorded memory snapshot, opened without running what it may carry, and what it shows.

Source: ``torch.cuda.memory._dump_snapshot`` of torch 2.11 and 2.13.
"""

from __future__ import annotations

import pickle
from collections import Counter
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from memcalc.allocator.counter import Levels
from memcalc.errors import UsageError

_HOW = "record one with torch.cuda.memory._dump_snapshot(path)"

_BLOCK: dict[str, type] = {"size": int, "requested_size": int, "state": str}
_ENTRY: dict[str, type] = {"action": str, "size": int, "stream": int}
_SEGMENT: dict[str, type] = {
    "address": int,
    "blocks": list,
    "device": int,
    "segment_type": str,
    "stream": int,
    "total_size": int,
}


def read_snapshot(path: Path) -> dict[str, Any]:
    """Open a snapshot; only plain values can be in it.

    Raises:
        UsageError: there is no such file, it is no snapshot, or it asks to load code.
    """
    try:
        with path.open("rb") as file:
            loaded = _PlainUnpickler(file).load()
    except UsageError as refusal:
        raise UsageError(f"{path} was not opened: {refusal}; {_HOW}.") from None
    except OSError as error:
        raise UsageError(f"Cannot read {path}: {error.strerror}.") from None
    except Exception:
        raise UsageError(f"{path} is not a memory snapshot; {_HOW}.") from None
    _check(loaded, path)
    snapshot: dict[str, Any] = loaded
    return snapshot


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """Live storages that came from the same line."""

    name: str
    count: int
    bytes: int
    """Sum of the blocks' sizes."""


class PoolSize(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes reserved by one pool (``small`` or ``large``) of one stream."""

    pool: str
    stream: int
    bytes: int


class Breakdown(msgspec.Struct, frozen=True, kw_only=True):
    """What a snapshot shows of one device at its end. Sizes in bytes."""

    levels: Levels
    segments: int
    largest_free: int
    """Size of the largest block nobody uses."""
    reserved_by_pool: tuple[PoolSize, ...]
    sites: tuple[Site, ...]
    """Where live storages came from, largest first."""


def breakdown(snapshot: dict[str, Any], *, device: int = 0) -> Breakdown:
    """Sum up what the segments of one device hold."""
    own = [segment for segment in snapshot["segments"] if segment["device"] == device]
    blocks = [block for segment in own for block in segment["blocks"]]
    active = [block for block in blocks if block["state"] != "inactive"]
    held = [block for block in active if block["state"] == "active_allocated"]
    reserved: Counter[tuple[str, int]] = Counter()
    for segment in own:
        reserved[segment["segment_type"], segment["stream"]] += segment["total_size"]
    counts: Counter[str] = Counter(_site(block) for block in held)
    sizes: Counter[str] = Counter()
    for block in held:
        sizes[_site(block)] += block["size"]
    free = [block["size"] for block in blocks if block["state"] == "inactive"]
    return Breakdown(
        levels=Levels(
            requested=sum(block["requested_size"] for block in active),
            allocated=sum(block["size"] for block in held),
            active=sum(block["size"] for block in active),
            reserved=sum(reserved.values()),
        ),
        segments=len(own),
        largest_free=max(free, default=0),
        reserved_by_pool=tuple(
            PoolSize(pool=pool, stream=stream, bytes=size)
            for (pool, stream), size in reserved.items()
        ),
        sites=tuple(
            Site(name=name, count=counts[name], bytes=size) for name, size in sizes.most_common()
        ),
    )


class _PlainUnpickler(pickle.Unpickler):
    """Builds containers and scalars, and nothing that has to be looked up by name."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise UsageError(f"it wants to load {module}.{name}, and a snapshot holds plain values")

    def persistent_load(self, pid: object) -> NoReturn:
        raise UsageError("it refers to something outside itself")


def _site(block: dict[str, Any]) -> str:
    """The innermost line of Python, or else the innermost frame that has a file."""
    frames = [frame for frame in block.get("frames") or () if frame["filename"] != "??"]
    python = [frame for frame in frames if frame["filename"].endswith((".py", ">"))]
    if not frames:
        return "(no frames recorded)"
    frame = (python or frames)[0]
    return f"{frame['filename']}:{frame['line']}:{frame['name']}"


def _check(loaded: object, path: Path) -> None:
    """Raise unless everything later code looks at is there and of its type."""
    try:
        whole = isinstance(loaded, dict) and (
            all(_has(segment, _SEGMENT) for segment in loaded["segments"])
            and all(_has(block, _BLOCK) for seg in loaded["segments"] for block in seg["blocks"])
            and all(_has(entry, _ENTRY) for trace in loaded["device_traces"] for entry in trace)
        )
    except (KeyError, TypeError):
        whole = False
    if not whole:
        raise UsageError(f"{path} holds something else than a memory snapshot; {_HOW}.")


def _has(record: object, kinds: dict[str, type]) -> bool:
    return isinstance(record, dict) and all(
        isinstance(record.get(key), kind) for key, kind in kinds.items()
    )
