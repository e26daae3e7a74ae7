"""Where an answer goes and in which format: the options, and the writing."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from memcalc import report
from memcalc.cli.command import FILE, option
from memcalc.errors import UsageError, unknown
from memcalc.explanation.records import Explanation
from memcalc.files import artifact
from memcalc.records.prediction import Prediction

FORMAT = option("--format", "-f", help="table, json, markdown or csv.")
OUTPUT = option("--output", "-o", type=FILE, help="Write here; format by extension.")
FORMATS = ("table", "json", "markdown")
_EXTENSIONS = {".json": "json", ".md": "markdown", ".txt": "table"}


def deliver_predictions(found: list[Prediction], format: str | None, output: Path | None) -> None:
    """Print or write predictions."""
    if output is not None:
        name = format or report.format_for(output)
        artifact.write(output, report.render(found, name))
        return
    name = format or "table"
    if name == "table":
        from memcalc.report import table

        color = sys.stdout.isatty()
        sys.stdout.write(table.render(found, color=color))
    else:
        sys.stdout.write(report.render(found, name))


def deliver_explanation(found: Explanation, name: str, output: Path | None, top: int) -> None:
    """Print or write an explanation."""
    from memcalc.report import explained_table as report

    if name == "json":
        text = report.as_json(found)
    elif name == "markdown":
        text = report.markdown(found, top=top)
    else:
        color = output is None and sys.stdout.isatty()
        width = max(80, min(shutil.get_terminal_size((100, 24)).columns, 140))
        text = report.table(found, top=top, color=color, width=width)
    if output is not None:
        artifact.write(output, text)
    else:
        sys.stdout.write(text)


def format_of(format: str | None, output: Path | None) -> str:
    """The format that was asked for, by name or by the file's extension.

    Raises:
        UsageError: there is no such format.
    """
    name = format or (_format_for(output) if output is not None else "table")
    if name not in FORMATS:
        raise unknown("format", name, FORMATS, hint=f"choose one of {', '.join(FORMATS)}.")
    return name


def _format_for(path: Path) -> str:
    if path.suffix.lower() not in _EXTENSIONS:
        known = ", ".join(_EXTENSIONS)
        raise UsageError(f"No format belongs to {path.name}: give it one of {known}.")
    return _EXTENSIONS[path.suffix.lower()]


@contextmanager
def progress(what: str) -> Iterator[None]:
    """A spinner on stderr; nothing when that is not a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(what):
        yield
