"""Finds the line of each key of a TOML text, which tomllib does not tell."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping

Path = tuple[str | int, ...]
_BARE_ENDS = frozenset("=.]} \t\r\n,")


def locate(text: str) -> dict[Path, int]:
    """Find the line of every key.

    Args:
        text: TOML that ``tomllib`` accepts.

    Returns:
        Line, counted from 1, by path; entries of an array of tables have their index in the path.
    """
    return _Scanner(text.replace("\r\n", "\n")).scan()


def line_of(lines: Mapping[Path, int], path: Path) -> int:
    """The line of a key, or of the nearest table around it."""
    for length in range(len(path), 0, -1):
        if path[:length] in lines:
            return lines[path[:length]]
    return 1


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.counted = (0, 1)
        """A place before which lines have been counted, and its line."""
        self.lines: dict[Path, int] = {}
        self.arrays: dict[Path, int] = {}
        """Entries so far of each array of tables."""

    def scan(self) -> dict[Path, int]:
        table: Path = ()
        while self._skip_blank():
            if self.text.startswith("[[", self.at):
                table = self._header(array=True)
            elif self.text[self.at] == "[":
                table = self._header(array=False)
            else:
                self._pair(table)
        return self.lines

    def _header(self, *, array: bool) -> Path:
        line = self._line()
        self.at += 2 if array else 1
        path = self._inside_arrays(self._keys("]"), array)
        self.at += 2 if array else 1
        self._note(path, line)
        return path

    def _inside_arrays(self, keys: list[str], array: bool) -> Path:
        """Put the index of the last entry behind every name that is an array of tables."""
        path: Path = ()
        for number, key in enumerate(keys):
            path = (*path, key)
            if array and number == len(keys) - 1:
                self.arrays[path] = self.arrays.get(path, 0) + 1
            if path in self.arrays:
                path = (*path, self.arrays[path] - 1)
        return path

    def _pair(self, table: Path) -> None:
        line = self._line()
        path = (*table, *self._keys("="))
        self.at += 1
        self._note(path, line)
        self._value(path)

    def _note(self, path: Path, line: int) -> None:
        for length in range(1, len(path) + 1):
            self.lines.setdefault(path[:length], line)

    def _keys(self, end: str) -> list[str]:
        keys: list[str] = []
        while True:
            self._skip(" \t")
            if self.at >= len(self.text) or self.text[self.at] == end:
                return keys
            if self.text[self.at] == ".":
                self.at += 1
            elif self.text[self.at] in "\"'":
                raw = self._string()
                keys.append(tomllib.loads(f"k = {raw}")["k"])
            else:
                start = self.at
                while self.at < len(self.text) and self.text[self.at] not in _BARE_ENDS:
                    self.at += 1
                self.at += self.at == start
                keys.append(self.text[start : self.at])

    def _value(self, path: Path) -> None:
        self._skip(" \t")
        first = self.text[self.at : self.at + 1]
        if first in ("'", '"'):
            self._string()
        elif first == "[":
            self._array(path)
        elif first == "{":
            self._inline(path)
        else:
            while self.at < len(self.text) and self.text[self.at] not in ",]}#\n":
                self.at += 1

    def _array(self, path: Path) -> None:
        self.at += 1
        index = 0
        while self._skip_blank() and self.text[self.at] != "]":
            self._note((*path, index), self._line())
            self._value((*path, index))
            index += 1
            self._skip_blank()
            self._skip(",", most=1)
        self.at += 1

    def _inline(self, path: Path) -> None:
        self.at += 1
        while self._skip_blank() and self.text[self.at] != "}":
            self._pair(path)
            self._skip_blank()
            self._skip(",", most=1)
        self.at += 1

    def _string(self) -> str:
        start, quote = self.at, self.text[self.at]
        long = self.text.startswith(quote * 3, self.at)
        closing = quote * 3 if long else quote
        self.at += len(closing)
        while self.at < len(self.text) and not self.text.startswith(closing, self.at):
            self.at += 2 if quote == '"' and self.text[self.at] == "\\" else 1
        self.at += len(closing)
        # A long string may end in one or two quotes of its own.
        self._skip(quote, most=2 if long else 0)
        return self.text[start : self.at]

    def _skip(self, characters: str, most: int | None = None) -> None:
        end = len(self.text) if most is None else min(self.at + most, len(self.text))
        while self.at < end and self.text[self.at] in characters:
            self.at += 1

    def _skip_blank(self) -> bool:
        """Go to the next sign that is neither space nor comment; False at the end."""
        while True:
            self._skip(" \t\r\n")
            if self.at >= len(self.text) or self.text[self.at] != "#":
                return self.at < len(self.text)
            end = self.text.find("\n", self.at)
            self.at = len(self.text) if end < 0 else end

    def _line(self) -> int:
        at, line = self.counted
        self.counted = (self.at, line + self.text.count("\n", at, self.at))
        return self.counted[1]
