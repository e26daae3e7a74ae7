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
    """What many storages have in common."""

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
    """What is written."""

    bare: Trace
    """Without its storages."""
    kinds: list[_Kind]
    storages: list[tuple[_Size, _Index, int]]
    """Bytes, number of the kind, and step of each."""


class DamagedTraceError(ValueError):
    """The file does not hold a whole trace."""


def pack(trace: Trace) -> bytes:
    """What a file of this trace holds."""
    kinds: dict[_Kind, int] = {}
    storages = []
    for one in trace.storages:
        kind = _Kind(*_in_common(one))
        storages.append((one.bytes, kinds.setdefault(kind, len(kinds)), one.step))
    packed = _Packed(replace(trace, storages=()), list(kinds), storages)
    return gzip.compress(MAGIC + msgspec.msgpack.encode(packed), compresslevel=1)


def unpack(data: bytes) -> Trace:
    """Read what ``pack`` made.

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
        return replace(packed.bare, storages=tuple(storages))
    except (EOFError, OSError, zlib.error, msgspec.MsgspecError, ValueError, LookupError) as error:
        raise DamagedTraceError(str(error)) from None
    except (MemoryError, OverflowError, RecursionError):
        raise DamagedTraceError("it is larger than a trace can be") from None
