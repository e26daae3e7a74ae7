"""Results as versioned JSON: every saved result can be read again, by later versions too."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from memcalc.errors import UsageError

SCHEMA = 1
T = TypeVar("T")


def encode(value: Any) -> Any:
    """Turn a record into plain JSON values."""
    return msgspec.to_builtins(value, str_keys=True)


def decode(kind: type[T], data: Any) -> T:
    """Turn plain JSON values back into a record of this type, every value checked.

    Unknown keys are left out, so that a file of a later version can be read; missing keys take
    the record's defaults, so that a file of an earlier version can.

    Raises:
        ValueError: the data does not have the shape of the record; says where.
    """
    try:
        return msgspec.convert(data, kind, str_keys=True)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None


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
