"""Formats of answers, and writing an answer."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TextIO

from memcalc.cli.command import say
from memcalc.errors import UsageError, unknown
from memcalc.files import artifact

if TYPE_CHECKING:
    from memcalc.records.trace import Trace
    from memcalc.report.blocks import Block
    from memcalc.report.suggested import Work


class Format(NamedTuple):
    """An output format."""

    extension: str
    """Empty: no file is recognized by it."""
    kinds: str
    """What can be written in it, in words."""


_ANSWERS = (
    "predictions simulation explanation out-of-memory snapshot fit suggestions difference check"
)

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
    """Return the names of the formats in which a kind of answer can be written."""
    return tuple(name for name, one in FORMATS.items() if kind in one.kinds.split())


def join_names(names: Sequence[str]) -> str:
    """Join names in prose: ``a, b or c``."""
    *first, last = names
    return f"{', '.join(first)} or {last}" if first else last


def chosen(kind: str, name: str | None, output: Path | None = None) -> str:
    """Return the output format: the named one, or the one of the output file's extension.

    Raises:
        UsageError: this kind of answer is not written so, or no file can be there.
    """
    if output is not None:
        artifact.check_place(output)
    known = formats(kind)
    if name is not None:
        name = {"md": "markdown"}.get(name, name)
        if name not in known:
            raise unknown("format", name, known, hint=f"choose {join_names(known)}.")
        return name
    if output is None:
        return "table"
    by_extension = {FORMATS[one].extension: one for one in known if FORMATS[one].extension}
    found = by_extension.get(output.suffix.lower())
    if found is None:
        named = "" if kind in ("page", "check") else ", or add --format"
        choice = join_names(list(by_extension))
        raise UsageError(
            f"No format belongs to {str(output)!r}: let its name end in {choice}{named}."
        )
    return found


_CHANGED_IN_PLACE = (".yaml", ".yml", ".sh")
"""Recipes, which an estimate may write back."""
_WRITTEN = "as memcalc estimates it"
"""In the first line of the scripts that memcalc writes (train.py.j2)."""


def refuse_to_replace(output: Any, given: Iterable[Any]) -> None:
    """Refuse to replace a file that a command reads, or a Python file that memcalc did not write.

    ``given``: what was typed for all options and arguments.

    Raises:
        UsageError: the output is such a file.
    """
    if not isinstance(output, Path) or not os.path.isfile(output):
        return
    words = (word for one in given for word in (one if isinstance(one, list | tuple) else (one,)))
    read = [word for word in words if isinstance(word, str | Path) and word is not output]
    wrong = ""
    if output.suffix not in _CHANGED_IN_PLACE and any(_is_file(word, output) for word in read):
        wrong = "this command reads it"
    elif output.suffix == ".py" and _WRITTEN not in output.read_text("utf-8", "replace"):
        wrong = "there is another Python file"
    if wrong:
        raise UsageError(f"Cannot write {output}: {wrong}; name another file.")


def _is_file(word: str | Path, file: Path) -> bool:
    with contextlib.suppress(OSError, ValueError):
        return os.path.samefile(os.path.expanduser(word), file)
    return False


_NARROWEST, _WIDEST = 60, 140


def put(text: str, output: Path | None = None) -> None:
    """Write a text to a file, or print it with characters the terminal lacks escaped."""
    if output is not None:
        artifact.write(output, text)
        wrote(output)
        return
    encoding = sys.stdout.encoding or "ascii"
    sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))


def wrote(path: Path) -> None:
    """Print on stderr that a file was written, unless it is a stream."""
    if not artifact.is_stream(path):
        say(f"Wrote {path}.")


def may_color(output: Path | None) -> bool:
    """Return True if the output may have colors."""
    if output is not None or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return sys.stdout.isatty()


def width() -> int:
    """Return the width of a table in columns: the terminal's, ``$COLUMNS``, or 100."""
    return min(max(_NARROWEST, shutil.get_terminal_size((100, 24)).columns), _WIDEST)


def terminal_width(stream: TextIO) -> int | None:
    """Return ``width`` for a terminal, or None for a file or pipe, whose lines stay whole."""
    return width() if stream.isatty() or "COLUMNS" in os.environ else None


def deliver(
    name: str, output: Path | None, blocks: Iterable[Block], **others: Callable[[], str]
) -> None:
    """Print or write an answer in a format: from blocks, or by a writer of that format."""
    from memcalc.report.blocks import markdown, terminal

    if name in others:
        put(others[name](), output)
    elif name == "markdown":
        put(markdown(blocks), output)
    else:
        # Whoever reads this may know no signs but ASCII's.
        plain = output is None and not (sys.stdout.encoding or "ascii").lower().startswith("utf")
        put(terminal(blocks, width=width(), color=may_color(output), plain=plain), output)


class Output(NamedTuple):
    """The format, file and detail of an answer: --format, --output and --verbose."""

    format: str | None
    """After ``choose_format`` the name of one."""
    file: Path | None
    verbose: bool = False

    def choose_format(self, kind: str, *, beside: bool = False) -> Self:
        """Return a copy with the format that a kind of answer is written in.

        ``beside``: something else goes to the file, and the answer is printed.

        Raises:
            UsageError: this kind of answer is not written so, or no file can be there.
        """
        file = None if beside else self.file
        return self._replace(format=chosen(kind, self.format, file), file=file)

    @property
    def full(self) -> bool:
        """True if every figure and source is shown: for a file, JSON, Markdown or ``-v``."""
        return self.verbose or self.file is not None or self.format in ("json", "markdown")

    def deliver(
        self,
        found: Any,
        *,
        top: int = 0,
        work: Work | None = None,
        traces: Sequence[Trace] = (),
    ) -> None:
        """Print or write predictions, or an answer of one of ``report.saved.KINDS``.

        ``traces``: of predictions, for JSON.
        """
        others: dict[str, Callable[[], str]] = {}
        if not isinstance(found, Sequence):
            from memcalc.report import saved

            blocks: Iterable[Block] = saved.blocks(found, verbose=self.full, top=top, work=work)
            others["json"] = lambda: saved.as_json(found)
        else:
            from memcalc.report import predictions

            # A table compares several; Markdown has each in full.
            groups = [[one] for one in found] if self.format == "markdown" else [found]
            blocks = [b for group in groups for b in predictions.blocks(group, verbose=self.full)]
            others["json"] = lambda: predictions.as_json(found, traces)
            others["csv"] = lambda: predictions.as_csv(found)
        deliver(self.format or "table", self.file, blocks, **others)
