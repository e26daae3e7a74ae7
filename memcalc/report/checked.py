"""A check of memory budgets as rows, sentences and blocks; every format is made of them."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from memcalc import untrusted_text
from memcalc.budgets.records import Report, Rule, Status, Verdict
from memcalc.report.blocks import Block, Kind, Line, Table
from memcalc.units import GIB, KIB, MIB

_STATUS = {Status.OVER: "over", Status.UNKNOWN: "unknown", Status.HOLDS: "ok"}
_UNITS = (("GiB", GIB, 2), ("MiB", MIB, 1), ("KiB", KIB, 1), ("B", 1, 0))
_LARGE = 100 * GIB
_SHOWN = 5
"""Runs that are named beside a reason that they share."""


class Figures(NamedTuple):
    """The unit and the decimals of all figures of one verdict."""

    unit: str
    factor: int
    decimals: int

    def write(self, size: int | None, *, signed: bool = False) -> str:
        """Return a size as text in this unit; empty if it is None."""
        if size is None:
            return ""
        sign = "+" if signed and size >= 0 else ""
        return f"{sign}{size / self.factor:,.{self.decimals}f} {self.unit}"


def choose_figures(verdict: Verdict) -> Figures:
    """Choose the unit of a verdict's sizes, small enough to show differences.

    Bytes per parameter where the limit is one.
    """
    apart = [abs(d) for d in (verdict.difference, verdict.change) if d]
    count = verdict.parameters
    if count:
        places = next(n for n in range(2, 20) if all(d * 10**n * 2 >= count for d in apart))
        return Figures("B/param", count, places)
    known = [abs(size) for size in (verdict.value, verdict.limit, verdict.before) if size]
    largest = max(known, default=0)
    for unit, factor, decimals in _UNITS:
        seen = all(d * 10**decimals * 2 >= factor for d in apart)
        if seen and largest >= (_LARGE if unit == "GiB" else factor):
            return Figures(unit, factor, decimals)
    return Figures("B", 1, 0)


class Row(NamedTuple):
    """The texts of one verdict, all sizes in one unit; empty where they are unknown."""

    before: str
    """The baseline's figure."""
    change: str
    """The bytes more than in the baseline, and their share."""
    value: str
    sign: str
    """How value and limit compare: ``>`` or ``<=``."""
    limit: str
    difference: str
    """The bytes over the limit."""
    written: str
    """The limit, and how it was written where that says more."""


def row(verdict: Verdict) -> Row:
    """Return a verdict's sizes as texts in one unit."""
    figures, budget, change = choose_figures(verdict), verdict.budget, verdict.change
    limit = figures.write(verdict.limit)
    written = limit or (budget.amount.text if budget.amount is not None else str(budget.gpu))
    if budget.rule is Rule.GROWTH and budget.amount is not None:
        growth = f"+{budget.amount.text}"
        written = f"{limit} ({growth})" if limit else growth
    share = f" ({change / verdict.before:+.1%})" if verdict.before and change else ""
    known = verdict.difference is not None
    return Row(
        before=figures.write(verdict.before) if change is not None else "",
        change=(figures.write(change, signed=True) if change != 0 else "0") + share,
        value=figures.write(verdict.value),
        sign=(">" if (verdict.difference or 0) > 0 else "<=") if known else "",
        limit=limit if known else "",
        difference=figures.write(verdict.difference, signed=True),
        written=written,
    )


def why(verdict: Verdict) -> str:
    """Return a verdict's reason, its margin and the remedy in one line."""
    margin = verdict.budget.margin
    kept = f"{margin.text} margin kept" if margin is not None and verdict.limit is not None else ""
    return one_line("; ".join(filter(None, (verdict.reason, kept, verdict.remedy))))


def reasons(report: Report) -> dict[str, str]:
    """Return the names of the budgets that fail for one reason, with that reason."""
    told: dict[str, str] = {}
    names: dict[str, dict[str, list[str]]] = {}
    for one in report.failures:
        if reason := why(one):
            # Of the same reason, each run has its own line of the budget file.
            alike = re.sub(r"^\S+:\d+: ", "", reason)
            told.setdefault(alike, reason)
            runs = names.setdefault(alike, {})
            runs.setdefault(one.budget.run, []).append(one.budget.name)
    return {_list_budgets(names[alike]): reason for alike, reason in told.items()}


def _list_budgets(runs: dict[str, list[str]]) -> str:
    """Return the budgets of runs in words: "a weights, fits T4; b weights; and 7 more runs"."""
    shown = [f"{run} {', '.join(names)}" for run, names in list(runs.items())[:_SHOWN]]
    left = len(runs) - len(shown)
    return "; ".join(shown) + (f"; and {left} more run{'s' * (left > 1)}" if left else "")


def one_line(text: str) -> str:
    """Return a text escaped for display, in one line."""
    return " ".join(untrusted_text.line(text).split())


def sentence(verdict: Verdict) -> str:
    """Return a verdict in one sentence: run, budget, figures and reason."""
    texts = row(verdict)
    figures = " ".join(filter(None, (texts.value, texts.sign, texts.limit)))
    apart = f" ({texts.difference})" if verdict.difference else ""
    unknown = "could not tell" if verdict.status is Status.UNKNOWN else ""
    parts = filter(None, (unknown, f"{figures}{apart}", why(verdict)))
    return untrusted_text.line(f"{verdict.budget.run}: {verdict.budget.name}: {': '.join(parts)}")


def path_in_repository(file: str) -> str:
    """Return a file's path relative to the root of the CI job's checkout."""
    root = os.environ.get("GITHUB_WORKSPACE") or os.environ.get("CI_PROJECT_DIR")
    full = Path(file).absolute()
    return full.relative_to(root).as_posix() if root and full.is_relative_to(root) else file


def summary(report: Report) -> str:
    """Return a count of the verdicts in words: "3 budgets: 1 over, 2 ok"."""
    total = len(report.verdicts)
    words = {Status.OVER: "over", Status.UNKNOWN: "could not be told", Status.HOLDS: "ok"}
    counts = ", ".join(
        f"{n} {word}" for status, word in words.items() if (n := report.count(status))
    )
    return f"{total} budget{'s' * (total != 1)}: {counts}"


def blocks(report: Report, *, only_failures: bool = False) -> Iterator[Block]:
    """Yield a budget report as blocks: table of verdicts, reasons, notes, warnings, summary."""
    shown = report.failures if only_failures else report.verdicts
    if only_failures and not shown:
        return
    yield Table(
        head=("", "run", "budget", "needs and limit", "over by"),
        rows=list(map(_make_cells, shown)),
        words=(0, 1, 2),
        strong=tuple(at for at, one in enumerate(shown) if one.status is Status.OVER),
    )
    for names, reason in reasons(report).items():
        yield Line(f"  {names}: {reason}", Kind.ITEM)
    yield from (Line(f"note: {note}") for note in report.notes if not only_failures)
    yield from (Line(f"warning: {warning}") for warning in report.warnings)
    yield Line(summary(report))


def _make_cells(verdict: Verdict) -> tuple[str, ...]:
    """Return a verdict as table cells; the unit is named once, after the limit."""
    texts, budget = row(verdict), verdict.budget
    value, apart = texts.value, texts.difference
    if texts.limit:
        value = f"{value.rsplit(' ', 1)[0]} {texts.sign} {texts.limit}"
        apart = apart.rsplit(" ", 1)[0]
    return _STATUS[verdict.status], budget.run, budget.name, value, apart
