"""Reports of a check to text for forges and programs, one module a format."""

from collections.abc import Callable
from functools import partial

from memcalc.budgets.formats import github, json, junit, markdown, sarif
from memcalc.budgets.records import Report


def writers(
    report: Report, code: int, *, only_failures: bool = False
) -> dict[str, Callable[[], str]]:
    """What writes a report in each format but the table."""
    return {
        "json": partial(json.render, report, code=code),
        "markdown": partial(markdown.render, report, only_failures=only_failures),
        "github": partial(github.render, report),
        "junit": partial(junit.render, report),
        "sarif": partial(sarif.render, report, code=code),
    }
