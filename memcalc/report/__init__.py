"""Records to text: one function per format, chosen by name or by a file's extension."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from memcalc.errors import UsageError, unknown
from memcalc.records.prediction import Prediction
from memcalc.report import csv, json, markdown, table

Reporter = Callable[[Sequence[Prediction]], str]

FORMATS: dict[str, Reporter] = {
    "table": table.render,
    "json": json.render,
    "markdown": markdown.render,
    "csv": csv.render,
}
_EXTENSIONS = {".json": "json", ".md": "markdown", ".csv": "csv", ".txt": "table"}


def render(predictions: Sequence[Prediction], name: str) -> str:
    """Write predictions in a format.

    Raises:
        UsageError: the format is unknown.
    """
    if name not in FORMATS:
        raise unknown("format", name, FORMATS, hint=f"choose one of {', '.join(FORMATS)}.")
    return FORMATS[name](predictions)


def format_for(path: Path) -> str:
    """The format that a file's extension asks for.

    Raises:
        UsageError: the extension belongs to no format.
    """
    if path.suffix.lower() not in _EXTENSIONS:
        known = ", ".join(_EXTENSIONS)
        raise UsageError(f"No format belongs to {path.name}: give it one of {known}.")
    return _EXTENSIONS[path.suffix.lower()]
