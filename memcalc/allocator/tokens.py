"""How an allocator configuration is cut into keys and values, and how a value is read."""

from __future__ import annotations

import re
from collections.abc import Iterator

from memcalc.errors import UsageError

Value = str | tuple[tuple[str, str], ...]
"""One word, or the pairs of a list such as ``[64:4,>:8]``."""

_EXAMPLE = "write key:value pairs set apart by commas, such as expandable_segments:True"
_PAIR = re.compile(r"([^:,\[\]]+):(?:([^:,\[\]]+)|\[([^\[\]]*)\])(?:,|$)")


def pairs(text: str) -> Iterator[tuple[str, Value]]:
    """Cut a configuration into its keys and values; white space counts for nothing.

    Raises:
        UsageError: the text is not a list of ``key:value``.
    """
    packed = "".join(text.split())
    at = 0
    while at < len(packed):
        match = _PAIR.match(packed, at)
        if match is None:
            raise UsageError(f"Cannot read allocator settings at {packed[at:]!r}: {_EXAMPLE}.")
        key, word, listed = match.groups()
        yield key, word if word is not None else _listed(key, listed)
        at = match.end()


def each(text: str) -> Iterator[str]:
    """The ``key:value`` pairs of a configuration that was read, as they are written."""
    for match in _PAIR.finditer("".join(text.split())):
        yield match[0].rstrip(",")


def _listed(key: str, text: str) -> tuple[tuple[str, str], ...]:
    entries = [entry.split(":") for entry in text.split(",")] if text else []
    if any(len(entry) != 2 or not all(entry) for entry in entries):
        raise UsageError(f"Cannot read the list of {key}: write it as {key}:[64:4,256:8,>:0].")
    return tuple((name, count) for name, count in entries)


def whole(key: str, value: Value) -> int:
    """Read a whole number.

    Raises:
        UsageError: it is none. (PyTorch cuts ``200.5`` to 200 and takes ``-5`` for a huge number;
        nobody means that.)
    """
    if isinstance(value, str) and value.isascii() and value.isdigit():
        return int(value)
    raise UsageError(f"{key} takes a whole number of MiB: write {key}:128.")


def fraction(key: str, value: Value) -> float:
    """Read a number such as ``0.8``.

    Raises:
        UsageError: it is none.
    """
    if isinstance(value, str) and re.fullmatch(r"\d*\.?\d+|\d+\.", value, re.ASCII):
        return float(value)
    raise UsageError(f"{key} takes a number from 0 to 1: write {key}:0.8.")


def boolean(key: str, value: Value) -> bool:
    """Read ``True`` or ``False``, spelled so.

    Raises:
        UsageError: it is neither.
    """
    if value in ("True", "False"):
        return value == "True"
    raise UsageError(f"{key} takes True or False, spelled so: write {key}:True.")


def power_of_two(key: str, text: str) -> int:
    """Read a power of two.

    Raises:
        UsageError: it is none.
    """
    number = int(text) if text.isascii() and text.isdigit() else 0
    if number and number & (number - 1) == 0:
        return number
    raise UsageError(f"{key} takes powers of two, not {text!r}: write {key}:4 or {key}:[64:4,>:8].")
