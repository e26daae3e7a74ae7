"""Reports of a check to text for forges and programs."""

from collections.abc import Callable
from functools import partial

from memcalc.budgets.formats import forges, programs
from memcalc.budgets.records import Report


def writers(
    report: Report, code: int, *, only_failures: bool = False
) -> dict[str, Callable[[], str]]:
    """What writes a report in each format but the table."""
    return {
        "json": partial(programs.as_json, report, code=code),
        "markdown": partial(forges.as_markdown, report, only_failures=only_failures),
        "github": partial(forges.as_annotations, report),
        "junit": partial(programs.as_junit, report),
        "sarif": partial(programs.as_sarif, report, code=code),
    }
