"""Reports of a check to text, one module a format."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from memcalc.budgets.formats import github, json, junit, markdown, sarif, table
from memcalc.budgets.records import Report


class Shown(NamedTuple):
    """What a person sees of a report, and where."""

    only_failures: bool = False
    width: int = 100
    color: bool = False


_PLAIN = Shown()
_RENDERERS: dict[str, Callable[[Report, int, Shown], str]] = {
    "table": lambda report, code, how: table.render(
        report, width=how.width, color=how.color, only_failures=how.only_failures
    ),
    "json": lambda report, code, how: json.render(report, code=code),
    "markdown": lambda report, code, how: markdown.render(report, only_failures=how.only_failures),
    "github": lambda report, code, how: github.render(report),
    "junit": lambda report, code, how: junit.render(report),
    "sarif": lambda report, code, how: sarif.render(report, code=code),
}


def render(report: Report, name: str, code: int, how: Shown = _PLAIN) -> str:
    """Write a report in a format.

    Args:
        report: what was found.
        name: a format of checks (``memcalc.files.formats``).
        code: the exit code, which some formats hold.
        how: for a terminal and for Markdown.
    """
    return _RENDERERS[name](report, code, how)
