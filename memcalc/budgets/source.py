"""One budget file as it was found: its values, its lines, and errors that name both."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from memcalc.budgets.records import Where
from memcalc.budgets.toml_lines import line_of, locate
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

    def where(self, key: Key) -> Where:
        """The line of a key, or of what is around it."""
        return Where(file=self.path, line=line_of(self.lines, (*self.prefix, *key)))

    def error(self, key: Key, message: str) -> UsageError:
        """An error that names the file and the line."""
        return UsageError(f"{self.where(key)}: {message}")

    def table(self, key: Key) -> dict[str, Any]:
        """The table at a key; empty where there is none.

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
        """Add the place to an error that does not know it."""
        try:
            yield
        except UsageError as error:
            raise self.error(key, str(error)) from None


def load(path: Path) -> Source:
    """Read a budget file.

    Raises:
        UsageError: it cannot be read, is not TOML, or is a pyproject.toml without our section.
    """
    shown = shown_path(path)
    data = untrusted_values.content(Path(shown), _LARGEST)
    try:
        text = data.decode("utf-8-sig")
        values, lines = untrusted_values.toml_of(text), locate(text)
    except UnicodeDecodeError:
        raise UsageError(f"{shown}:1: this is not UTF-8, which TOML is.") from None
    except ValueError as error:
        why = str(error)
        raise UsageError(f"{shown}:{_line_in(why)}: this is not valid TOML: {why}.") from None
    whole = Source(path=shown, data=values, lines=lines)
    if path.name != "pyproject.toml":
        return whole
    ours = whole.table(SECTION)
    if not ours:
        hint = "memcalc init writes some to copy."
        raise UsageError(f"{shown}:1: there are no budgets below [tool.memcalc]: {hint}")
    return Source(path=shown, data=ours, prefix=SECTION, lines=whole.lines)


def discover(start: Path) -> Path:
    """The budget file of this folder, or of the nearest one above it in the same repository.

    Raises:
        UsageError: there is none.
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
    """Relative to the current folder where it is below it, in the form of the web."""
    try:
        shown = path.absolute().relative_to(Path.cwd())
    except (OSError, ValueError):
        # Elsewhere, or the folder this runs in is gone.
        shown = path
    return shown.as_posix()


def has_section(path: Path) -> bool:
    """Does this pyproject.toml hold budgets, as far as can be told?"""
    try:
        data = untrusted_values.content(path, _LARGEST)
    except UsageError:
        return False
    try:
        tool = untrusted_values.toml_of(data.decode("utf-8-sig")).get("tool", {})
    except ValueError:
        # Only what says it is ours can stop a check; a broken pyproject.toml will be named then.
        return b"tool.memcalc" in data
    return isinstance(tool, dict) and "memcalc" in tool


def _line_in(reason: str) -> int:
    """The line that tomllib names in its message, or the first."""
    _, found, rest = reason.partition("(at line ")
    number = rest.split(",")[0]
    return int(number) if found and number.isdigit() else 1
