"""A report as annotations that GitHub shows on the lines of the budget file."""

import re

from memcalc.budgets.formats import text
from memcalc.budgets.records import Report, Status, Verdict
from memcalc.untrusted_text import github, github_property

_PLACE = re.compile(r"([^:]+):(\d+): (.*)", re.DOTALL)
_TITLE = "title=memcalc check"
MOST = 10
"""GitHub shows ten annotations of a kind for each step and drops the rest without a word."""


def render(report: Report) -> str:
    """Workflow commands, then a line for the log."""
    failures = report.failures
    lines = [_annotation("error", verdict) for verdict in failures[:MOST]]
    if len(failures) > MOST:
        left = ", ".join(f"{v.budget.run} {v.budget.name}" for v in failures[MOST : 2 * MOST])
        more = " and others" if len(failures) > 2 * MOST else ""
        message = f"{len(failures) - MOST} more budgets do not hold: {left}{more}"
        lines.append(f"::notice {_TITLE}::{github(message)}")
    warnings = [
        *(_annotation("warning", v) for v in report.verdicts if v.status is Status.NO_BASELINE),
        *(
            f"::warning title={github_property('memcalc check')}::{github(w)}"
            for w in report.warnings
        ),
    ]
    # The report's own warnings come last and say in sum what the single ones say.
    lines += warnings[-MOST:]
    return "\n".join([*lines, text.summary(report)]) + "\n"


def refusal(message: str) -> str:
    """An annotation for a file that is not understood, on the line that the message names."""
    match = _PLACE.match(message)
    if match is None:
        return f"::error {_TITLE}::{github(message)}\n"
    file = github_property(text.in_repository(match[1]))
    return f"::error file={file},line={match[2]},{_TITLE}::{github(match[3])}\n"


def _annotation(kind: str, verdict: Verdict) -> str:
    where = verdict.budget.where
    title = f"memcalc: {verdict.budget.run} {verdict.budget.name}"
    file = github_property(text.in_repository(where.file))
    properties = f"file={file},line={where.line},title={github_property(title)}"
    return f"::{kind} {properties}::{github(text.sentence(verdict))}"
