"""One line for each budget, for a terminal or a log."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from memcalc import foreign
from memcalc.budgets.formats import words
from memcalc.budgets.records import Report, Status, Verdict

_COLORS = {
    Status.OVER: "\x1b[1;31m",
    Status.UNKNOWN: "\x1b[1;33m",
    Status.NO_BASELINE: "\x1b[33m",
    Status.HOLDS: "\x1b[32m",
}
_RESET = "\x1b[0m"


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
    lines += [foreign.line(f"note: {note}") for note in report.notes if not only_failures]
    lines += [foreign.line(f"warning: {warning}") for warning in report.warnings]
    return foreign.lines("\n".join([*lines, words.summary(report)]) + "\n")


def _lines(verdicts: Sequence[Verdict], width: int, color: bool) -> list[list[str]]:
    cells = [
        (words.STATUS[v.status], *map(foreign.line, (v.budget.run, v.budget.name, *_figures(v))))
        for v in verdicts
    ]
    widths = [max((len(row[at]) for row in cells), default=0) for at in range(6)]
    return [
        _row(verdict, row, widths, width, color)
        for verdict, row in zip(verdicts, cells, strict=True)
    ]


def _figures(verdict: Verdict) -> tuple[str, str, str]:
    """Value, limit and difference, their one unit said once, behind the limit."""
    value, against, apart = words.comparison(verdict)
    if not against:
        return value, "", ""
    return value.rsplit(" ", 1)[0], against, apart.rsplit(" ", 1)[0]


def _row(
    verdict: Verdict, row: tuple[str, ...], widths: list[int], width: int, color: bool
) -> list[str]:
    status, run, name, value, against, apart = (
        text.ljust(size) if at < 3 or at == 4 else text.rjust(size)
        for at, (text, size) in enumerate(zip(row, widths, strict=True))
    )
    line = f"{status}  {run}  {name}  {value} {against}  {apart}"
    paint = _COLORS[verdict.status] if color else ""
    painted = f"{paint}{status}{_RESET}{line[len(status) :]}" if color else line
    reason, left = words.why(verdict), width - len(line) - 2
    if len(reason) <= left:
        return [f"{painted}  {reason}".rstrip()]
    if verdict.status in (Status.OVER, Status.UNKNOWN):
        indent = " " * (widths[0] + 2)
        wrapped = textwrap.wrap(reason, max(width, 40), initial_indent=indent,
                                subsequent_indent=indent)  # fmt: skip
        return [painted.rstrip(), *wrapped]
    return [painted.rstrip()]
