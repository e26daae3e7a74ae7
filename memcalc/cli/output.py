"""Output options, and writing an answer in its format."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

from memcalc.cli.command import option, say
from memcalc.cli.values import TEXT
from memcalc.files import artifact
from memcalc.files.formats import FORMATS, formats, listed

if TYPE_CHECKING:
    from memcalc.records.prediction import Prediction
    from memcalc.report.blocks import Block
    from memcalc.report.suggested import Work

Output = Annotated[
    Path | None,
    option("--output", "-o", metavar="FILE", help="Write here; format by extension."),
]
Verbose = Annotated[bool, option("--verbose", "-v", help="Print every figure, rule and source.")]
NoCache = Annotated[bool, option("--no-cache", help="Neither read nor keep answers on disk.")]
_NARROWEST, _WIDEST = 60, 140


def format_option(*kinds: str) -> Any:
    """The option that names the format of such answers, for ``Annotated``."""
    names = [name for name in FORMATS if any(name in formats(kind) for kind in kinds)]
    return option("--format", "-f", value=TEXT, help=f"{listed(names)}.")


def put(text: str, output: Path | None = None) -> None:
    """Write a text to a file, or print it; signs that a terminal cannot show become escapes."""
    if output is not None:
        artifact.write(output, text)
        wrote(output)
        return
    encoding = sys.stdout.encoding or "ascii"
    sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))


def wrote(path: Path) -> None:
    """Say where an answer lies now; beside the answers of others, on stderr."""
    if not artifact.is_stream(path):
        say(f"Wrote {path}.")


def colored(output: Path | None) -> bool:
    """Whether what is written here may have colors."""
    if output is not None or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return sys.stdout.isatty()


def width() -> int:
    """Columns that a table may take: those of the terminal or of ``$COLUMNS``, else 100."""
    return min(max(_NARROWEST, shutil.get_terminal_size((100, 24)).columns), _WIDEST)


def seen_width(stream: TextIO) -> int | None:
    """``width`` where a person sees it; ``None``: a file or a pipe, whose lines stay whole."""
    return width() if stream.isatty() or "COLUMNS" in os.environ else None


def in_full(verbose: bool, output: Path | None, name: str) -> bool:
    """Every figure and source is shown: a file and Markdown always have them."""
    return verbose or output is not None or name == "markdown"


def deliver(
    name: str, output: Path | None, blocks: Iterable[Block], **others: Callable[[], str]
) -> None:
    """Print or write an answer: as blocks, or by what makes the text of the format."""
    from memcalc.report.blocks import markdown, terminal

    if name in others:
        put(others[name](), output)
    elif name == "markdown":
        put(markdown(blocks), output)
    else:
        # Whoever reads this may know no signs but ASCII's.
        plain = output is None and not (sys.stdout.encoding or "ascii").lower().startswith("utf")
        put(terminal(blocks, width=width(), color=colored(output), plain=plain), output)


def deliver_predictions(
    found: Sequence[Prediction], name: str, output: Path | None, *, verbose: bool = False
) -> None:
    """Print or write predictions."""
    from memcalc.report import csv, json, predictions

    if name == "markdown":
        blocks = [b for p in found for b in predictions.blocks([p])]
    else:
        blocks = predictions.blocks(found, verbose=in_full(verbose, output, name))
    deliver(name, output, blocks, json=lambda: json.render(found), csv=lambda: csv.render(found))


def deliver_answer(
    found: Any,
    name: str,
    output: Path | None,
    *,
    verbose: bool = False,
    top: int = 0,
    work: Work | None = None,
) -> None:
    """Print or write an answer of one of ``report.saved.KINDS``."""
    from memcalc.report import saved

    full = in_full(verbose, output, name)
    blocks = saved.blocks(found, verbose=full, top=top, work=work)
    deliver(name, output, blocks, json=lambda: saved.as_json(found))
