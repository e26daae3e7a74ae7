"""The blocks of a report, and their rendering as terminal text and Markdown.

A report is a list of blocks. Their text is plain: a block's kind decides how it is shown, and text
is made harmless for each medium here and in ``memcalc.untrusted_text``.
"""

import io
import re
from collections.abc import Iterable, Sequence
from enum import Enum
from itertools import repeat

import msgspec
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from memcalc import untrusted_text
from memcalc.units import Unit, format_bytes
from memcalc.wrap import fold, parted, tied, untie

WIDTH = 100
BAR = 16
"""Columns of a bar."""


class Size(msgspec.Struct, frozen=True):
    """Bytes, shown in a unit."""

    bytes: int
    unit: Unit | None = None
    """The unit of its column, which names it; ``None``: the largest that fits, named."""
    text: str = ""
    """The figure where it is rounded so that a column adds up."""


class Share(msgspec.Struct, frozen=True):
    """A part of a whole, drawn as a bar where that can be done."""

    part: float
    """Between 0 and 1."""


Cell = str | Size | Share | tuple[str, str]
"""A pair is a text and the explanation below it."""


class Kind(Enum):
    """How a line is meant."""

    TEXT = "text"
    HEADING = "heading"
    VERDICT = "verdict"
    SUMMARY = "summary"
    SECTION = "section"
    ITEM = "item"
    """An item of a list, on a line alone."""
    COMMAND = "command"
    """To be typed."""
    NOTE = "note"


_STYLES = {Kind.HEADING: "bold", Kind.SUMMARY: "bold", Kind.SECTION: "italic", Kind.NOTE: "dim"}
_AROUND = {
    Kind.HEADING: ("### ", ""),
    Kind.VERDICT: ("**", "**"),
    Kind.SUMMARY: ("**", "**"),
    Kind.SECTION: ("**", "**"),
    Kind.ITEM: ("- ", ""),
}
"""What Markdown puts around a line."""


class Line(msgspec.Struct, frozen=True):
    """A line of text."""

    text: str
    kind: Kind = Kind.TEXT


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """Rows under a head."""

    title: str = ""
    head: tuple[str, ...]
    rows: Sequence[Sequence[Cell]]
    words: tuple[int, ...] = (0,)
    """Columns of text; all others hold figures."""
    strong: tuple[int, ...] = ()
    """Rows that stand out, such as a total."""


class Picture(msgspec.Struct, frozen=True):
    """A drawing, for pages only."""

    svg: bytes
    caption: str


Block = Line | Table | Picture


def terminal(
    blocks: Iterable[Block], *, width: int = WIDTH, color: bool = False, plain: bool = False
) -> str:
    """Return blocks as terminal or log text; ``plain``: in ASCII characters only."""
    out = io.StringIO()
    console = Console(
        file=out,
        width=width,
        force_terminal=color,
        force_jupyter=False,
        no_color=not color,
        highlight=False,
    )
    for block in blocks:
        if isinstance(block, Line):
            console.print(_render_line(block, width))
        elif isinstance(block, Table):
            console.print(_render_table(block))
    shown = untie(out.getvalue())
    if plain:
        shown = "".join(_PLAIN.get(sign, sign) for sign in shown)
    return untrusted_text.lines("".join(f"{text.rstrip()}\n" for text in shown.split("\n")[:-1]))


_PLAIN = {"✓": "+", "✗": "x", "·": "|", "█": "#", "▌": "#", "░": ".", "─": "-"}
_MARKS = {"fits": ("✓", "bold green"), "tight": ("!", "bold yellow")}


def _render_line(line: Line, width: int) -> Text:
    if line.kind is Kind.COMMAND:
        return Text(command(untrusted_text.line(line.text), width), style="bold")
    if line.kind is Kind.VERDICT:
        known = (mark for word, mark in _MARKS.items() if line.text.startswith(word))
        sign, style = next(known, ("✗", "bold red"))
        return _make_text(f"{sign} {line.text}", style)
    text = _make_text(line.text, _STYLES.get(line.kind, ""))
    indent = len(line.text) - len(line.text.lstrip())
    # Lines after the first begin below it.
    return Text("\n".join(fold(text.plain, width, indent)), text.style) if indent else text


def command(text: str, width: int) -> str:
    """Break a shell command into lines that end in a backslash."""
    indent = len(text) - len(text.lstrip())
    rows = [""]
    for word in WORD.findall(text):
        last = rows[-1]
        if last and indent + len(last) + len(word) + 3 > width:
            rows.append("  ")
        rows[-1] += word if not rows[-1].strip() else f" {word}"
    return " \\\n".join(" " * indent + row for row in rows)


WORD = re.compile(r"(?:--[\w-]+ )?(?:'(?:[^']|'\"'\"')*'|[^\s'])+")
"""A word of a command, or an option with its value."""


def _make_text(text: str, style: str = "", *, paths: bool = False) -> Text:
    """Return harmless text for rich; ``paths``: it may part paths of modules, as in a column."""
    shown = tied(untrusted_text.line(text))
    return Text(parted(shown) if paths else shown, style=style)


def _render_table(table: Table) -> Grid:
    title = _make_text(table.title, "italic") if table.title else None
    grid = Grid(title=title, title_justify="left", box=None)
    for at, name in enumerate(table.head):
        words = at in table.words
        justify = "left" if words else "right"
        grid.add_column(_make_text(name), justify=justify, no_wrap=not words, overflow="fold")  # type: ignore[arg-type]
    for number, row in enumerate(table.rows):
        grid.add_row(*map(_render_cell, row), style="bold" if number in table.strong else None)
    return grid


def _render_cell(cell: Cell) -> Text:
    if isinstance(cell, Size):
        return Text(_format_size(cell))
    if isinstance(cell, Share):
        return Text(bar(cell.part))
    if isinstance(cell, str):
        return _make_text(cell, paths=True)
    reason = _make_text(cell[1], "dim", paths=True)
    return _make_text(cell[0], paths=True).append("\n  ").append(reason)


def _format_size(size: Size) -> str:
    return size.text or (size.unit.number(size.bytes) if size.unit else format_bytes(size.bytes))


def size_or(size: int | None, unit: Unit, unknown: str = "n/a") -> Cell:
    """Return a size as a table cell in the column's unit, or a text if it is None."""
    return Size(size, unit) if size is not None else unknown


def sizes(parts: Sequence[int], unit: Unit) -> list[Size]:
    """Return the parts of a sum as table cells, rounded so that they add up."""
    return [Size(*one) for one in zip(parts, repeat(unit), unit.numbers(parts), strict=False)]


def bar(part: float) -> str:
    """Draw a share from 0 to 1 as a bar of block characters; any share above 0 is visible."""
    halves = round(part * 2 * BAR)
    return "█" * (halves // 2) + "▌" * (halves % 2) or ("▌" if part > 0 else "")


def gauge(part: float, columns: int) -> str:
    """Draw a share from 0 to 1 as a filled and an empty part, in this many columns."""
    filled = min(round(part * columns), columns)
    return "█" * filled + "░" * (columns - filled)


def markdown(blocks: Iterable[Block]) -> str:
    """Return blocks as Markdown."""
    parts: list[str] = []
    listed = False
    for block in blocks:
        if isinstance(block, Picture):
            continue
        item = isinstance(block, Line) and block.kind is Kind.ITEM
        if parts and not (item and listed):
            parts.append("\n")
        listed = item
        parts.append(_markdown_line(block) if isinstance(block, Line) else _markdown_table(block))
    return "".join(parts)


def _markdown_line(line: Line) -> str:
    text = line.text.strip()
    if line.kind is Kind.COMMAND:
        return f"    {untrusted_text.line(text)}\n"
    before, after = _AROUND.get(line.kind, ("", ""))
    return f"{before}{untrusted_text.markdown(text)}{after}\n"


def _markdown_table(table: Table) -> str:
    rows = [
        [
            f"**{cell}**" if cell and number in table.strong else cell
            for cell in map(_plain_cell, row)
        ]
        for number, row in enumerate(table.rows)
    ]
    title = f"{untrusted_text.markdown(table.title)}\n\n" if table.title else ""
    return title + untrusted_text.grid(
        list(map(untrusted_text.markdown, table.head)), rows, table.words
    )


def _plain_cell(cell: Cell) -> str:
    if isinstance(cell, Size):
        return _format_size(cell)
    if isinstance(cell, Share):
        return f"{cell.part:.1%}"
    if isinstance(cell, str):
        return untrusted_text.markdown(cell)
    return "<br>".join(map(untrusted_text.markdown, cell))
