"""Finds the line of each key of a TOML text, which tomllib does not tell."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

Path = tuple[str, ...]

_LONGEST = 1000
"""Lines of one value; keys behind a longer one have the line of their table."""


def locate(text: str) -> dict[Path, int]:
    """Find the line of every key; what stands in a value of several lines has that of its key.

    Args:
        text: TOML that ``tomllib`` accepts.

    Returns:
        Line, counted from 1, by path; of an array of tables the first that has the key.
    """
    found: dict[Path, int] = {}
    table: Path = ()
    for line, written in _statements(text):
        paths = list(_paths(tomllib.loads(written)))
        if written.lstrip().startswith("["):
            table = max(paths, key=len)
        else:
            paths = [table + path for path in paths]
        for path in paths:
            found.setdefault(path, line)
    return found


def line_of(lines: Mapping[Path, int], path: Path) -> int:
    """The line of a key, or of the nearest table around it."""
    for length in range(len(path), 0, -1):
        if path[:length] in lines:
            return lines[path[:length]]
    return 1


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """Headers and pairs, each the fewest lines that are TOML alone, and where they begin."""
    begun, written = 1, ""
    for line, more in enumerate(text.replace("\r\n", "\n").split("\n"), start=1):
        if not written:
            begun = line
        written += f"{more}\n"
        if line - begun > _LONGEST:
            return
        try:
            tomllib.loads(written)
        except tomllib.TOMLDecodeError:
            continue
        yield begun, written
        written = ""


def _paths(value: Any, path: Path = ()) -> Iterator[Path]:
    """Every key of a statement, and of the tables in it."""
    for part in value if isinstance(value, list) else [value]:
        for key, below in part.items() if isinstance(part, dict) else ():
            yield (*path, key)
            yield from _paths(below, (*path, key))
