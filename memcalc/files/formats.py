"""The formats memcalc writes: their extensions, and what can be written in each; one table."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from memcalc.errors import UsageError, unknown
from memcalc.files import artifact


class Format(NamedTuple):
    """One format."""

    extension: str
    """Empty: no file is recognized by it."""
    kinds: str
    """What can be written in it, in words."""


_ANSWERS = "predictions simulation explanation snapshot fit suggestions difference check"

FORMATS = {
    "table": Format(".txt", f"{_ANSWERS} measurements driver"),
    "json": Format(".json", f"{_ANSWERS} driver"),
    "markdown": Format(".md", f"{_ANSWERS} measurements driver"),
    "csv": Format(".csv", "predictions simulation"),
    "github": Format("", "check"),
    "junit": Format(".xml", "check"),
    "sarif": Format(".sarif", "check"),
    "html": Format(".html", "page simulation"),
    "svg": Format(".svg", "page simulation"),
    "png": Format(".png", "page simulation"),
    "pdf": Format(".pdf", "page simulation"),
    "pickle": Format(".pickle", "page simulation"),
}


def formats(kind: str) -> tuple[str, ...]:
    """Names of the formats of this kind of answer."""
    return tuple(name for name, one in FORMATS.items() if kind in one.kinds.split())


def listed(names: Sequence[str]) -> str:
    """Names as a sentence ends with them: ``a, b or c``."""
    *first, last = names
    return f"{', '.join(first)} or {last}" if first else last


def chosen(kind: str, name: str | None, output: Path | None = None) -> str:
    """The format that was asked for: by name, or by the extension of the file it goes to.

    Raises:
        UsageError: this kind of answer is not written so, or no file can be there.
    """
    if output is not None:
        artifact.check_place(output)
    known = formats(kind)
    if name is not None:
        if name not in known:
            raise unknown("format", name, known, hint=f"choose {listed(known)}.")
        return name
    if output is None:
        return "table"
    by_extension = {FORMATS[one].extension: one for one in known if FORMATS[one].extension}
    found = by_extension.get(output.suffix.lower())
    if found is None:
        named = "" if kind in ("page", "check") else ", or add --format"
        choice = listed(list(by_extension))
        raise UsageError(
            f"No format belongs to {str(output)!r}: let its name end in {choice}{named}."
        )
    return found
