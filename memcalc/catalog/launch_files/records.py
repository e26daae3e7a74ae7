"""The records of a launcher's configuration file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from memcalc.errors import UsageError
from memcalc.files import untrusted_values

_LARGEST = 1 << 20


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """A file as settings of a plan."""

    file: str
    """As people named it."""
    settings: dict[str, Any] = msgspec.field(default_factory=dict)
    """Fields of a plan."""
    unread: tuple[str, ...] = ()
    """What changes memory and has no place in a plan; one clause each."""


def mapping(path: Path) -> Mapping[str, Any]:
    """A file as a table of settings.

    Raises:
        UsageError: it cannot be read, or holds something else.
    """
    written = untrusted_values.content(path, _LARGEST)
    kind = "JSON" if path.suffix == ".json" else "YAML"
    try:
        data = (
            untrusted_values.loads(written)
            if kind == "JSON"
            else untrusted_values.yaml(written.decode("utf-8-sig"))
        )
    except ValueError as error:
        raise UsageError(f"{path} is not {kind}: {error}.") from None
    if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
        raise UsageError(f"{path} holds no table of settings.")
    return data


def flag(value: Any, key: str, file: str) -> bool:
    """A switch, which people also write as a text.

    Raises:
        UsageError: it is neither.
    """
    words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    found = words.get(str(value).strip().lower())
    if found is None:
        raise UsageError(f"{file}: {key} = {value!r} is neither true nor false.")
    return found


def count(value: Any, key: str, file: str) -> int:
    """A whole number of at least 1, which people also write as a text or as ``1e8``.

    Raises:
        UsageError: it is none.
    """
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = 0.0
    if isinstance(value, bool) or not 1 <= number < 1 << 53 or not number.is_integer():
        raise UsageError(f"{file}: {key} = {value!r} is not a whole number from 1.")
    return int(number)


def table(data: Mapping[str, Any], key: str, file: str) -> dict[str, Any]:
    """A part of a file with keys of its own; empty where it is missing.

    Raises:
        UsageError: it is something else.
    """
    found = data.get(key)
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise UsageError(f"{file}: {key} = {str(found)[:40]!r} is no table of settings.")
    return {str(name): value for name, value in found.items()}
