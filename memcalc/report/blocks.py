"""What a report is made of, and the one way it becomes a terminal's text, Markdown or HTML.

A report is a list of blocks. Text in them is plain: how it is shown is said by a block's kind, and
what it would do to a medium is taken care of here and in ``memcalc.foreign``.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from enum import Enum

import msgspec
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from memcalc import foreign
from memcalc.units import format_bytes, format_mib

WIDTH = 100


class Size(msgspec.Struct, frozen=True):
    """Bytes: for people at a terminal in a unit, in a file exactly."""

    bytes: int
    mib: bool = False
    """A total, in the unit in which totals are compared."""


Cell = str | Size | tuple[str, str]
"""A pair is a text and, below it, what is said of it."""


class Kind(Enum):
    """How a line is meant."""

    TEXT = "text"
    HEADING = "heading"
    VERDICT = "verdict"
    SUMMARY = "summary"
    SECTION = "section"
    ITEM = "item"
    """One of a list, each of which stays on its line."""
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


def terminal(blocks: Sequence[Block], *, width: int = WIDTH, color: bool = False) -> str:
    """For a person at a terminal, or a log."""
    out = io.StringIO()
    console = Console(
        file=out, width=width, force_terminal=color, no_color=not color, highlight=False
    )
    for block in blocks:
        if isinstance(block, Line):
            whole = block.kind in (Kind.ITEM, Kind.COMMAND)
            console.print(_text(block.text, _style(block)), soft_wrap=whole)
        elif isinstance(block, Table):
            console.print(_grid(block))
    kept = "".join(f"{text.rstrip()}\n" for text in out.getvalue().split("\n")[:-1])
    return foreign.lines(kept)


def _style(line: Line) -> str:
    if line.kind is Kind.VERDICT:
        return "bold green" if line.text.startswith("fits") else "bold red"
    return _STYLES.get(line.kind, "")


def _text(text: str, style: str = "") -> Text:
    return Text(foreign.line(text), style=style)


def _grid(table: Table) -> Grid:
    title = _text(table.title, "italic") if table.title else None
    grid = Grid(title=title, title_justify="left", box=None)
    for at, name in enumerate(table.head):
        words = at in table.words
        justify = "left" if words else "right"
        grid.add_column(_text(name), justify=justify, no_wrap=not words, overflow="fold")  # type: ignore[arg-type]
    for number, row in enumerate(table.rows):
        grid.add_row(*map(_cell, row), style="bold" if number in table.strong else None)
    return grid


def _cell(cell: Cell) -> Text:
    if isinstance(cell, Size):
        return Text(format_mib(cell.bytes) if cell.mib else format_bytes(cell.bytes))
    if isinstance(cell, str):
        return _text(cell)
    return _text(cell[0]).append("\n  ").append(_text(cell[1], "dim"))


def markdown(blocks: Sequence[Block]) -> str:
    """For an issue, a pull request or a notebook; sizes are exact."""
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
        return f"    {foreign.line(text)}\n"
    before, after = _AROUND.get(line.kind, ("", ""))
    return f"{before}{foreign.markdown(text)}{after}\n"


def _markdown_table(table: Table) -> str:
    rows = [
        [f"**{cell}**" if cell and number in table.strong else cell for cell in map(_exact, row)]
        for number, row in enumerate(table.rows)
    ]
    title = f"{foreign.markdown(table.title)}\n\n" if table.title else ""
    return title + foreign.grid(list(map(foreign.markdown, table.head)), rows, table.words)


def _exact(cell: Cell) -> str:
    if isinstance(cell, Size):
        return f"{cell.bytes:,}"
    if isinstance(cell, str):
        return foreign.markdown(cell)
    return "<br>".join(map(foreign.markdown, cell))
