"""Results as versioned JSON: every saved result can be read again, by later versions too."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import tempfile
import types
import typing
from enum import Enum
from pathlib import Path
from typing import Any

from memcalc.errors import UsageError

SCHEMA = 1


def encode(value: Any) -> Any:
    """Turn a record into plain JSON values."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: encode(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, dict):
        return {str(encode(key)): encode(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [encode(item) for item in value]
    return value


def decode(kind: Any, data: Any) -> Any:
    """Turn plain JSON values back into a record of this type.

    Unknown keys are left out, so that a file of a later version can be read; missing keys take
    the record's defaults, so that a file of an earlier version can.

    Raises:
        TypeError: the data does not have the shape of the record.
    """
    origin = typing.get_origin(kind)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        hints = _hints(kind)
        known = {f.name for f in dataclasses.fields(kind) if f.init} & data.keys()
        return kind(**{name: decode(hints[name], data[name]) for name in known})
    if origin in (types.UnionType, typing.Union):
        if data is None:
            return None
        for option in typing.get_args(kind):
            if option is not type(None) and _matches(option, data):
                return decode(option, data)
        return data
    if origin is tuple:
        args = typing.get_args(kind)
        if len(args) == 2 and args[1] is Ellipsis:
            return tuple(decode(args[0], item) for item in data)
        return tuple(decode(arg, item) for arg, item in zip(args, data, strict=True))
    if origin is dict:
        key, item = typing.get_args(kind)
        return {decode(key, k): decode(item, v) for k, v in data.items()}
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(data)
    return data


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    """Types of a record's fields; looking them up takes longer than all else in decoding."""
    return typing.get_type_hints(kind)


def _matches(option: Any, data: Any) -> bool:
    if dataclasses.is_dataclass(option):
        return isinstance(data, dict)
    if isinstance(option, type) and issubclass(option, Enum):
        return isinstance(data, str | int)
    if isinstance(option, type):
        return isinstance(data, option)
    return isinstance(data, list | dict)


def write(path: Path, text: str) -> None:
    """Write a whole file or nothing: readers never see half a result.

    Raises:
        UsageError: the folder does not exist or cannot be written, or the disk is full.
    """
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> None:
    """Write a whole file or nothing.

    Raises:
        UsageError: the folder does not exist or cannot be written, or the disk is full.
    """
    temporary = None
    try:
        with tempfile.NamedTemporaryFile(
            "wb", dir=path.parent, prefix=f".{path.name}.", delete=False
        ) as file:
            temporary = file.name
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
        temporary = None
    except OSError as error:
        raise UsageError(f"Cannot write {path}: {error.strerror}.") from None
    finally:
        # Also when it is interrupted, no half file stays behind.
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)


def read(path: Path) -> dict[str, Any]:
    """Read a result file.

    Raises:
        UsageError: no such file, or it is not a result of memcalc, or of a later major version.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"Cannot read {path}: {error.strerror}.") from None
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise UsageError(f"{path} is not JSON: give a file that memcalc wrote.") from None
    if not isinstance(data, dict) or "schema" not in data:
        raise UsageError(f"{path} is not a result of memcalc: give a file that memcalc wrote.")
    if not isinstance(data["schema"], int) or data["schema"] > SCHEMA:
        raise UsageError(f"{path} was written by a later memcalc: update memcalc to read it.")
    return data
