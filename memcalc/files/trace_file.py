"""A trace in a file: the names once, every storage and event as a few numbers, compressed.

A trace of a large model has hundreds of thousands of events; this takes a few bytes of each. The
file is only ever read by the memcalc that wrote it or a later one, and holds nothing executable.
"""

import gzip
import io
import operator
import zlib
from typing import Annotated

import msgspec
from msgspec.structs import astuple, replace

from memcalc.records.trace import Component, Phase, Storage, Trace

MAGIC = b"memcalc trace 5\n"
_MOST = 1 << 30
"""Bytes of a trace before it is compressed; the largest models have some millions of events."""
_Size = Annotated[int, msgspec.Meta(ge=0, le=1 << 61)]
_Index = Annotated[int, msgspec.Meta(ge=0)]


class _Kind(msgspec.Struct, frozen=True, array_like=True):
    """The fields that many storages have in common."""

    component: Component
    phase: Phase
    module: str
    op: str
    dtype: str
    until: str
    stream: int
    used_by: int | None
    line: str


_in_common = operator.attrgetter(*_Kind.__struct_fields__)


class _Packed(msgspec.Struct, array_like=True):
    """A trace in the form of its file."""

    bare: Trace
    """Without its storages."""
    kinds: list[_Kind]
    storages: list[tuple[_Size, _Index, int]]
    """Bytes, number of the kind, and step of each."""


class DamagedTraceError(ValueError):
    """The file does not hold a whole trace."""


def _check_events(trace: Trace) -> None:
    """Raise ValueError unless storages are allocated, then freed, and phases are in order.

    Raises:
        ValueError: the trace is none of a run.
    """
    born, alive = bytearray(len(trace.storages)), bytearray(len(trace.storages))
    for event in trace.events:
        number = event if event >= 0 else ~event
        if bool(alive[number]) != (event < 0) or (event >= 0 and born[number]):
            raise ValueError("events are out of order")
        alive[number] = event >= 0
        born[number] = True
    if any(not -1 <= aside.storage < len(born) for aside in trace.asides):
        raise ValueError("asides are of no storage")
    indices = [mark.index for mark in trace.marks]
    if not indices or indices[0] < 0 or indices != sorted(indices):
        raise ValueError("phases are out of order")


def pack(trace: Trace) -> bytes:
    """Return a trace as compressed bytes for a file."""
    kinds: dict[_Kind, int] = {}
    storages = []
    for one in trace.storages:
        kind = _Kind(*_in_common(one))
        storages.append((one.bytes, kinds.setdefault(kind, len(kinds)), one.step))
    packed = _Packed(replace(trace, storages=()), list(kinds), storages)
    return gzip.compress(MAGIC + msgspec.msgpack.encode(packed), compresslevel=1)


def unpack(data: bytes) -> Trace:
    """Return the trace in bytes that ``pack`` made.

    Raises:
        DamagedTraceError: not such data, or cut short.
    """
    try:
        with gzip.open(io.BytesIO(data), "rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                raise ValueError("not a trace of memcalc")
            packed = msgspec.msgpack.decode(file.read(_MOST), type=_Packed)
        count, events = len(packed.storages), packed.bare.events
        if events and not -count <= min(events) <= max(events) < count:
            raise ValueError("events are out of range")
        fields = [dict(zip(_Kind.__struct_fields__, astuple(k), strict=True)) for k in packed.kinds]
        storages = [
            Storage(bytes=size, step=step, **fields[kind]) for size, kind, step in packed.storages
        ]
        found = replace(packed.bare, storages=tuple(storages))
        _check_events(found)
        return found
    except (EOFError, OSError, zlib.error, msgspec.MsgspecError, ValueError, LookupError) as error:
        raise DamagedTraceError(str(error)) from None
    except MemoryError:
        raise DamagedTraceError("main memory does not hold it") from None
    except (OverflowError, RecursionError):
        raise DamagedTraceError("it is larger than a trace can be") from None
