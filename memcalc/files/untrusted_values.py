"""Reads plain values from untrusted files, within bounds.

Nothing that is read here is run, and no file makes reading it take more than its size deserves.
"""

import tomllib
from pathlib import Path
from typing import Any

import msgspec

from memcalc.errors import UsageError

MOST = 256 << 20
"""Bytes of a file of results; a campaign of a thousand measured runs takes a tenth of it."""
_PIECE = 1 << 20
_LEAST, _LARGEST = -(1 << 63), (1 << 63) - 1
"""No size, count or time of a machine is larger."""
_MOST_NODES = 100_000
_MOST_LEVELS = 100
"""Lists within lists of a file; what reads them later calls itself for each."""


def reason(error: BaseException) -> str:
    """Return in a few words why a file could not be used, from the exception."""
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8"
    said = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(said.split())[:200].rstrip(".")


def content(path: Path, most: int = MOST) -> bytes:
    """Return the bytes of a file, at most ``most``.

    Raises:
        UsageError: it cannot be read, or holds more bytes than ``most``.
    """
    data = bytearray()
    try:
        # Nobody may ever write to a pipe with a name; a shell's have none.
        if path.is_fifo() and path.parts[1:2] not in (("dev",), ("proc",)):
            raise OSError("it is a pipe, not a file")
        if path.is_char_device():
            most = min(most, MOST)
        with open(path, "rb") as file:
            while len(data) <= most and (piece := file.read(_PIECE)):
                data += piece
    except (OSError, ValueError, MemoryError) as error:
        raise UsageError(f"Cannot read {path}: {reason(error)}.") from None
    if len(data) > most:
        raise UsageError(f"{path} is larger than {most >> 20} MiB: such a file is not that large.")
    return bytes(data)


def json(path: Path, *, hint: str, most: int = MOST) -> Any:
    """Read a JSON file as plain values, within bounds.

    Raises:
        UsageError: it cannot be read, or is no JSON with numbers that a machine has.
    """
    data = content(path, most)
    if not data.strip():
        raise UsageError(f"{path} is empty: {hint}.")
    try:
        return loads(data)
    except ValueError as error:
        raise UsageError(f"{path} is not JSON ({reason(error)}): {hint}.") from None


def loads(data: bytes) -> Any:
    """Parse JSON bytes as plain values, with integers of at most 63 bits.

    Raises:
        ValueError: it is no such JSON.
    """
    try:
        value = msgspec.json.decode(data.removeprefix(b"\xef\xbb\xbf"))
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(reason(error)) from None
    _check_values(value)
    return value


def toml(path: Path) -> dict[str, Any]:
    """Read a TOML file as plain values, within bounds.

    Raises:
        UsageError: it cannot be read, or is no TOML.
    """
    try:
        return parse_toml(content(path).decode("utf-8-sig"))
    except ValueError as error:
        raise UsageError(f"{path} is not valid TOML: {reason(error)}.") from None


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML as plain values.

    Raises:
        ValueError: it is no TOML with numbers that a machine has.
    """
    try:
        value = tomllib.loads(text)
        _check_values(value)
    except (ValueError, RecursionError) as error:
        raise ValueError(reason(error)) from None
    return value


def yaml(text: str) -> Any:
    """Parse YAML as plain values.

    Raises:
        ValueError: it is no YAML, or its aliases expand to far more than is written.
    """
    import yaml as library

    try:
        root = library.compose(text, library.SafeLoader)
        if root is not None and _size(root, {}) > _MOST_NODES:
            raise ValueError("its aliases stand for too much")
        value = library.safe_load(text)
        _check_values(value)
        return value
    except (library.YAMLError, RecursionError, OverflowError) as error:
        raise ValueError(reason(error)) from None


def _size(node: Any, known: dict[int, int]) -> int:
    """Return the number of YAML nodes below a node, aliases expanded."""
    if id(node) not in known:
        # While it is being counted, one that holds itself has no end.
        known[id(node)] = _MOST_NODES + 1
        below = node.value if isinstance(node.value, list) else []
        parts = [part for item in below for part in (item if isinstance(item, tuple) else (item,))]
        known[id(node)] = 1 + sum(_size(part, known) for part in parts)
    return known[id(node)]


def _check_values(value: Any) -> None:
    """Check that whole numbers have at most 63 bits, and that lists do not nest too deeply."""
    level: list[Any] = [[value]]
    for _ in range(_MOST_LEVELS):
        below: list[Any] = []
        for group in level:
            for item in group.values() if type(group) is dict else group:
                kind = type(item)
                if kind is dict or kind is list:
                    below.append(item)
                elif kind is int and not _LEAST <= item <= _LARGEST:
                    raise ValueError("a number in it is larger than any machine's")
        if not below:
            return
        level = below
    raise ValueError("it is nested too deeply")
