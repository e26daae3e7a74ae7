"""Reports of a check to text, one module a format."""

from __future__ import annotations

from collections.abc import Callable

from memcalc.budgets.formats import github, json, junit, markdown, sarif, table
from memcalc.budgets.records import Report

_RENDERERS: dict[str, Callable[[Report, int], str]] = {
    "table": lambda report, code: table.render(report),
    "json": lambda report, code: json.render(report, code=code),
    "markdown": lambda report, code: markdown.render(report),
    "github": lambda report, code: github.render(report),
    "junit": lambda report, code: junit.render(report),
    "sarif": lambda report, code: sarif.render(report, code=code),
}


def render(report: Report, name: str, code: int) -> str:
    """Write a report in a format.

    Args:
        report: what was found.
        name: a format of checks (``memcalc.files.formats``).
        code: the exit code, which some formats hold.
    """
    return _RENDERERS[name](report, code)
