"""A trace in a file: the names once as JSON, every storage and event as a number, compressed.

A trace of a large model has hundreds of thousands of events; this takes a few bytes of each. The
file is only ever read by the memcalc that wrote it or a later one, and holds nothing executable.
"""

from __future__ import annotations

import gzip
import io
import json
import struct
import sys
import zlib
from array import array
from pathlib import Path
from typing import Any, BinaryIO

from msgspec.structs import replace

from memcalc.files.artifact import decode, encode, write_bytes
from memcalc.records.trace import Component, Phase, Storage, Trace

MAGIC = b"memcalc trace 4\n"
_LENGTH = struct.Struct("<Q")
_Kind = tuple[Component, Phase, str, str, str, str, int, int | None, str]
_LARGEST = 1 << 61
_MOST = 4 << 30
"""Bytes of a column; traces of the largest models have some millions of events of eight."""
_COLUMNS = ("bytes", "kind", "step", "events")


class DamagedTraceError(ValueError):
    """The file does not hold a whole trace."""


def write(path: Path, trace: Trace) -> None:
    """Write a trace whole or not at all.

    Raises:
        UsageError: the file cannot be written.
    """
    write_bytes(path, pack(trace))


def pack(trace: Trace) -> bytes:
    """What a file of this trace holds."""
    kinds: dict[tuple[str | int | None, ...], int] = {}
    columns = {name: array("q") for name in _COLUMNS}
    for storage in trace.storages:
        kind = (
            *(storage.component, storage.phase, storage.module),
            *(storage.op, storage.dtype, storage.until),
            *(storage.stream, storage.used_by, storage.line),
        )
        columns["bytes"].append(storage.bytes)
        columns["kind"].append(kinds.setdefault(kind, len(kinds)))
        columns["step"].append(storage.step)
    columns["events"].extend(trace.events)
    bare = replace(trace, storages=(), events=())
    header = json.dumps({"trace": encode(bare), "kinds": [list(kind) for kind in kinds]}).encode()
    raw = io.BytesIO()
    with gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=1) as file:
        file.write(MAGIC + _LENGTH.pack(len(header)) + header)
        for column in columns.values():
            if sys.byteorder == "big":
                column.byteswap()
            file.write(_LENGTH.pack(len(column)) + column.tobytes())
    return raw.getvalue()


def unpack(data: bytes) -> Trace:
    """Read what ``pack`` made.

    Raises:
        DamagedTraceError: not such data, or cut short.
    """
    try:
        with gzip.open(io.BytesIO(data), "rb") as file:
            return _read(file)  # type: ignore[arg-type]
    except (EOFError, OSError, zlib.error, ValueError, LookupError, TypeError) as error:
        raise DamagedTraceError(str(error)) from None
    except (MemoryError, OverflowError, RecursionError):
        raise DamagedTraceError("it is larger than a trace can be") from None


def _read(file: BinaryIO) -> Trace:
    if file.read(len(MAGIC)) != MAGIC:
        raise ValueError("not a trace of memcalc")
    header = json.loads(_take(file, _length(file)))
    columns: dict[str, Any] = {}
    for name in _COLUMNS:
        column = array("q")
        column.frombytes(_take(file, _length(file) * column.itemsize))
        if sys.byteorder == "big":
            column.byteswap()
        columns[name] = column
    if file.read(1):
        raise ValueError("more than a trace")
    kinds = decode(list[_Kind], header["kinds"])
    bare = decode(Trace, header["trace"])
    _check(columns, len(kinds))
    return replace(
        bare,
        storages=tuple(
            _storage(size, kinds[kind], step)
            for size, kind, step in zip(
                columns["bytes"], columns["kind"], columns["step"], strict=True
            )
        ),
        events=tuple(columns["events"]),
    )


def _check(columns: dict[str, array[int]], kinds: int) -> None:
    """Every number names something that is there; sizes are sizes."""
    count = len(columns["bytes"])
    for name, least, end in (("bytes", 0, _LARGEST), ("kind", 0, kinds), ("events", -count, count)):
        if columns[name] and not least <= min(columns[name]) <= max(columns[name]) < end:
            raise ValueError(f"{name} are out of range")


def _storage(size: int, kind: _Kind, step: int) -> Storage:
    component, phase, module, op, dtype, until, stream, used_by, line = kind
    return Storage(
        bytes=size,
        component=component,
        phase=phase,
        step=step,
        module=module,
        op=op,
        dtype=dtype,
        until=until,
        stream=stream,
        used_by=used_by,
        line=line,
    )


def _length(file: BinaryIO) -> int:
    length: int = _LENGTH.unpack(_take(file, _LENGTH.size))[0]
    return length


def _take(file: BinaryIO, count: int) -> bytes:
    if count > _MOST:
        raise OverflowError
    data = file.read(count)
    if len(data) != count:
        raise ValueError("the file is cut short")
    return data
