"""One line for each budget, for a terminal or a log."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from memcalc import untrusted_text
from memcalc.budgets.formats import text
from memcalc.budgets.records import Report, Status, Verdict
from memcalc.wrap import fold

_COLORS = {
    Status.OVER: "\x1b[1;31m",
    Status.UNKNOWN: "\x1b[1;33m",
    Status.NO_BASELINE: "\x1b[33m",
    Status.HOLDS: "\x1b[32m",
}
_RESET = "\x1b[0m"
_HEADS = ("", "run", "budget", "needs", "limit", "over by")
_BETWEEN = 9
"""Spaces between the columns."""


class _Form(msgspec.Struct, frozen=True, kw_only=True):
    """How the rows are laid out."""

    columns: list[int]
    """Signs of the widest cell of each."""
    width: int
    beside: bool
    """Figures stand beside the name, as there is room for it in every row."""


def render(
    report: Report, *, width: int = 100, color: bool = False, only_failures: bool = False
) -> str:
    """The report as lines; a failure's reason stands below it where it does not fit beside it.

    Args:
        report: what was found.
        width: columns there are.
        color: paint the verdicts.
        only_failures: leave out what holds; nothing at all where everything does.
    """
    shown = report.failures if only_failures else report.verdicts
    if only_failures and not shown:
        return ""
    lines = [line for lines in _lines(shown, width, color) for line in lines]
    notes = [f"note: {note}" for note in report.notes if not only_failures]
    warnings = [f"warning: {warning}" for warning in report.warnings]
    for sentence in (*notes, *warnings, text.summary(report)):
        lines += fold(untrusted_text.line(sentence), width, 2)
    return untrusted_text.lines("\n".join(lines) + "\n")


def _lines(verdicts: Sequence[Verdict], width: int, color: bool) -> list[list[str]]:
    cells = [
        (
            text.STATUS[v.status],
            *map(untrusted_text.line, (v.budget.run, v.budget.name, *_figures(v))),
        )
        for v in verdicts
    ]
    columns = [max(len(row[at]) for row in (_HEADS, *cells)) for at in range(6)]
    form = _Form(columns=columns, width=width, beside=sum(columns) + _BETWEEN <= width)
    rows = [_row(verdict, row, form) for verdict, row in zip(verdicts, cells, strict=True)]
    if color:
        for verdict, (status, *_), lines in zip(verdicts, cells, rows, strict=True):
            lines[0] = f"{_COLORS[verdict.status]}{status}{_RESET}{lines[0][len(status) :]}"
    return [["  ".join(_cells(_HEADS, form))], *rows] if form.beside and rows else rows


def _cells(row: Sequence[str], form: _Form) -> tuple[str, str]:
    """What a row is about, and its figures, under those of other rows."""
    status, run, name, value, against, apart = (
        text.ljust(size) if at < 3 or at == 4 else text.rjust(size)
        for at, (text, size) in enumerate(zip(row, form.columns, strict=True))
    )
    return f"{status}  {run}  {name}", f"{value} {against}  {apart}".rstrip()


def _figures(verdict: Verdict) -> tuple[str, str, str]:
    """Value, limit and difference, their one unit said once, behind the limit."""
    value, against, apart = text.comparison(verdict)
    if not against:
        return value, "", ""
    return value.rsplit(" ", 1)[0], against, apart.rsplit(" ", 1)[0]


def _row(verdict: Verdict, row: tuple[str, ...], form: _Form) -> list[str]:
    hang = form.columns[0] + 2
    about, figures = _cells(row, form)
    if form.beside:
        lines = [f"{about}  {figures}".rstrip()]
    else:
        lines = fold(f"{row[0].ljust(form.columns[0])}  {row[1]}  {row[2]}", form.width, hang)
        lines += [" " * hang + figures] if figures else []
    reason = text.why(verdict)
    if reason and len(lines[-1]) + 2 + len(reason) <= form.width:
        lines[-1] += f"  {reason}"
    elif verdict.status in (Status.OVER, Status.UNKNOWN):
        lines += fold(" " * hang + reason, form.width, hang)
    return lines
