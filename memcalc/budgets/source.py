"""A budget file: its values, the lines of its keys, and errors that name both."""

import os
import re
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from memcalc.budgets.records import Where
from memcalc.errors import UsageError
from memcalc.files import untrusted_values

Key = tuple[str, ...]
SECTION = ("tool", "memcalc")
_LARGEST = 4 << 20


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a file that is ours."""

    path: str
    data: dict[str, Any]
    prefix: Key = ()
    """Where it begins: ``tool.memcalc`` in a pyproject.toml."""
    lines: dict[Key, int] = msgspec.field(default_factory=dict)

    def place(self, key: Key) -> Where:
        """Return file and line of a key, or of the table around it."""
        path = (*self.prefix, *key)
        around = (path[:length] for length in range(len(path), 0, -1))
        line = next((self.lines[one] for one in around if one in self.lines), 1)
        return Where(file=self.path, line=line)

    def error(self, key: Key, message: str) -> UsageError:
        """Return a UsageError whose message starts with file and line of a key."""
        return UsageError(f"{self.place(key)}: {message}")

    def table(self, key: Key) -> dict[str, Any]:
        """Return the table at a key; empty where it is missing.

        Raises:
            UsageError: something else stands there.
        """
        here: Any = self.data
        for number, part in enumerate(key, start=1):
            here = here.get(part, {})
            if not isinstance(here, dict):
                name = ".".join((*self.prefix, *key[:number]))
                raise self.error(key[:number], f"{name} is not a table: write [{name}].")
        return dict(here)

    @contextmanager
    def at(self, key: Key) -> Iterator[None]:
        """Add file and line of a key to any UsageError raised inside the ``with`` block."""
        try:
            yield
        except UsageError as error:
            raise self.error(key, str(error)) from None


def load(path: Path) -> Source:
    """Read a budget file, or the ``[tool.memcalc]`` section of a pyproject.toml.

    Raises:
        UsageError: it cannot be read, is not TOML, or is a pyproject.toml without our section.
    """
    shown = shown_path(path)
    data = untrusted_values.content(Path(shown), _LARGEST)
    try:
        text = data.decode("utf-8-sig")
        values, lines = untrusted_values.parse_toml(text), locate(text)
    except UnicodeDecodeError:
        raise UsageError(f"{shown}:1: this is not UTF-8, which TOML is.") from None
    except ValueError as error:
        # The line that tomllib names in its message, or the first.
        at = re.search(r"\(at line (\d+),", str(error))
        line = at[1] if at is not None else 1
        raise UsageError(f"{shown}:{line}: this is not valid TOML: {error}.") from None
    whole = Source(path=shown, data=values, lines=lines)
    if path.name != "pyproject.toml":
        return whole
    ours = whole.table(SECTION)
    if not ours:
        hint = "memcalc init writes some to copy."
        raise UsageError(f"{shown}:1: there are no budgets below [tool.memcalc]: {hint}")
    return Source(path=shown, data=ours, prefix=SECTION, lines=whole.lines)


def discover(start: Path) -> Path:
    """Find the budget file of a folder, or of the nearest parent within the repository.

    Raises:
        UsageError: no folder has a budget file.
    """
    for folder in (start, *start.parents):
        if os.path.isfile(folder / "memcalc.toml"):
            return folder / "memcalc.toml"
        project = folder / "pyproject.toml"
        if os.path.isfile(project) and has_section(project):
            return project
        if os.path.exists(folder / ".git"):
            break
    raise UsageError(
        "There is no memcalc.toml here, nor a [tool.memcalc] in pyproject.toml: "
        "memcalc init MODEL writes one."
    )


def shown_path(path: Path) -> str:
    """Return a path relative to the current folder where it is below it, with slashes."""
    try:
        shown = path.absolute().relative_to(Path.cwd())
    except (OSError, ValueError):
        # Elsewhere, or the folder this runs in is gone.
        shown = path
    return shown.as_posix()


def has_section(path: Path) -> bool:
    """Return True if a pyproject.toml has a ``[tool.memcalc]`` section, even an invalid one."""
    try:
        data = untrusted_values.content(path, _LARGEST)
    except UsageError:
        return False
    try:
        tool = untrusted_values.parse_toml(data.decode("utf-8-sig")).get("tool", {})
    except ValueError:
        # Only what says it is ours can stop a check; a broken pyproject.toml will be named then.
        return b"tool.memcalc" in data
    return isinstance(tool, dict) and "memcalc" in tool


_LONGEST = 1000
"""Lines of one value; keys behind a longer one have the line of their table."""


def locate(text: str) -> dict[Key, int]:
    """Return the line number of every key of a TOML text, by key path.

    Returns:
        Line, counted from 1, by path; of an array of tables the first that has the key.
    """
    found: dict[Key, int] = {}
    table: Key = ()
    for line, written in _split_statements(text):
        paths = list(_iterate_paths(tomllib.loads(written)))
        if written.lstrip().startswith("["):
            table = max(paths, key=len)
        else:
            paths = [table + path for path in paths]
        for path in paths:
            found.setdefault(path, line)
    return found


def _split_statements(text: str) -> Iterator[tuple[int, str]]:
    """Yield each TOML header or key-value pair of a text, with its first line's number."""
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


def _iterate_paths(value: Any, path: Key = ()) -> Iterator[Key]:
    """Yield the path of every key of parsed TOML, nested tables included."""
    for part in value if isinstance(value, list) else [value]:
        for key, below in part.items() if isinstance(part, dict) else ():
            yield (*path, key)
            yield from _iterate_paths(below, (*path, key))
