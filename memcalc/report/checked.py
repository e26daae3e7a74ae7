"""A check of memory budgets as blocks: a row for each budget, worst first."""

from collections.abc import Iterator

from memcalc.budgets.formats import text
from memcalc.budgets.records import Report, Status, Verdict
from memcalc.report.blocks import Block, Kind, Line, Table


def blocks(report: Report, *, only_failures: bool = False) -> Iterator[Block]:
    """The verdicts, why what fails does, what was understood, and how many of how many."""
    shown = report.failures if only_failures else report.verdicts
    if only_failures and not shown:
        return
    yield Table(
        head=("", "run", "budget", "needs and limit", "over by"),
        rows=list(map(_row, shown)),
        words=(0, 1, 2),
        strong=tuple(at for at, one in enumerate(shown) if one.status is Status.OVER),
    )
    for one in report.failures:
        yield Line(f"  {one.budget.run} {one.budget.name}: {text.why(one)}", Kind.ITEM)
    yield from (Line(f"note: {note}") for note in report.notes if not only_failures)
    yield from (Line(f"warning: {warning}") for warning in report.warnings)
    yield Line(text.summary(report))


def _row(verdict: Verdict) -> tuple[str, ...]:
    """Value, limit and difference have one unit, which is named once, behind the limit."""
    value, against, apart = text.comparison(verdict)
    if against:
        value, apart = f"{value.rsplit(' ', 1)[0]} {against}", apart.rsplit(" ", 1)[0]
    budget = verdict.budget
    return text.STATUS[verdict.status], budget.run, budget.name, value, apart
