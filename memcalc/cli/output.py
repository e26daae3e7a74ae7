"""Where an answer goes and in which format: the options, and the writing."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from memcalc import report
from memcalc.cli.command import FILE, option
from memcalc.explanation.records import Explanation
from memcalc.files import artifact
from memcalc.files.formats import FORMATS, formats, listed
from memcalc.records.prediction import Prediction

OUTPUT = option("--output", "-o", type=FILE, help="Write here; format by extension.")


def format_option(*kinds: str) -> Callable[[Any], Any]:
    """The option that names the format of such answers."""
    names = [name for name in FORMATS if any(name in formats(kind) for kind in kinds)]
    return option("--format", "-f", help=f"{listed(names)}.")


def put(text: str, output: Path | None) -> None:
    """Write a text to a file, or print it."""
    if output is not None:
        artifact.write(output, text)
    else:
        sys.stdout.write(text)


def colored(output: Path | None) -> bool:
    """Whether what is written here may have colours."""
    if output is not None or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return sys.stdout.isatty()


def deliver_predictions(found: list[Prediction], name: str, output: Path | None) -> None:
    """Print or write predictions."""
    if name == "table":
        from memcalc.report import table

        put(table.render(found, color=colored(output)), output)
    else:
        put(report.render(found, name), output)


def deliver_explanation(found: Explanation, name: str, output: Path | None, top: int) -> None:
    """Print or write an explanation."""
    from memcalc.report import explained_table as report

    if name == "json":
        text = report.as_json(found)
    elif name == "markdown":
        text = report.markdown(found, top=top)
    else:
        width = max(80, min(shutil.get_terminal_size((100, 24)).columns, 140))
        text = report.table(found, top=top, color=colored(output), width=width)
    put(text, output)


@contextmanager
def progress(what: str) -> Iterator[None]:
    """A spinner on stderr; nothing when that is not a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(what):
        yield
