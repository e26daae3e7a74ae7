"""A report on a pull request: a comment of Markdown, and annotations that GitHub shows on lines."""

import re
from collections.abc import Sequence

from memcalc import untrusted_text
from memcalc.budgets.formats import text
from memcalc.budgets.records import Report, Status, Verdict
from memcalc.untrusted_text import github, github_property

MARKER = "<!-- memcalc:check -->"
"""On the first line, so that a bot finds the comment it wrote and updates it."""
OPEN_ROWS = 10
_LONGEST = 60_000
"""GitHub refuses a comment of more than 65,536 characters."""
_HEAD = ("run", "budget", "before", "after", "change", "limit", "verdict")
_SIGNS = {
    Status.OVER: "❌ **over**",
    Status.UNKNOWN: "⚠️ **could not tell**",
    Status.HOLDS: "✅ ok",
}


def as_markdown(report: Report, *, only_failures: bool = False) -> str:
    """One table, failures first; what is more than ten rows is folded, but never a failure."""
    shown = report.failures if only_failures else report.verdicts
    failures = len(report.failures)
    verdict = "Memory budgets hold" if not failures else "Memory budgets do not hold"
    parts = [f"{MARKER}\n### {verdict}\n\n{text.summary(report)}.\n"]
    open_rows = max(OPEN_ROWS, failures)
    if shown:
        parts.append(_table(shown[:open_rows]))
    reasons = {f"{v.budget.run} {v.budget.name}": text.why(v) for v in report.failures}
    parts.append("".join(f"- {escape(f'{n}: {why}')}\n" for n, why in reasons.items() if why))
    rest = shown[open_rows:]
    if rest:
        title = f"<summary>{len(rest)} more</summary>"
        parts.append(f"<details>\n{title}\n\n{_table(rest)}\n</details>\n")
    parts += [f"> {escape(sentence)}\n" for sentence in (*report.warnings, *report.notes)]
    return _bounded(parts)


def escape(sentence: str) -> str:
    """Text that Markdown takes as text, on one line."""
    return untrusted_text.markdown(text.one_line(sentence))


def _table(verdicts: Sequence[Verdict]) -> str:
    return untrusted_text.grid(_HEAD, list(map(_row, verdicts)), words=(0, 1, 6))


def _row(verdict: Verdict) -> tuple[str, ...]:
    before, changed = text.before_and_change(verdict)
    value, _, difference = text.comparison(verdict)
    said = _SIGNS[verdict.status]
    if verdict.status is Status.OVER and difference:
        said += f" by {difference.removeprefix('+')}"
    return (
        escape(verdict.budget.run),
        escape(verdict.budget.name),
        *(_figure(text) for text in (before, value, changed, text.limit(verdict))),
        said,
    )


def _figure(text: str) -> str:
    """A number that does not part from its unit."""
    return escape(text).replace(" ", "\u00a0").replace("\u00a0(", " (") or "n/a"


def _bounded(parts: list[str]) -> str:
    text = "\n".join(part for part in parts if part)
    if len(text) <= _LONGEST:
        return text
    cut = text[:_LONGEST].rsplit("\n", 1)[0]
    ended = "\n</details>\n" if cut.count("<details>") > cut.count("</details>") else "\n"
    return f"{cut}\n{ended}\n> The rest does not fit in a comment: see the log of the job.\n"


_PLACE = re.compile(r"([^:]+):(\d+): (.*)", re.DOTALL)
_TITLE = "title=memcalc check"
MOST = 10
"""GitHub shows ten annotations of a kind for each step and drops the rest without a word."""


def as_annotations(report: Report) -> str:
    """Workflow commands, then a line for the log."""
    failures = report.failures
    lines = [_annotation("error", verdict) for verdict in failures[:MOST]]
    if len(failures) > MOST:
        left = ", ".join(f"{v.budget.run} {v.budget.name}" for v in failures[MOST : 2 * MOST])
        more = " and others" if len(failures) > 2 * MOST else ""
        message = f"{len(failures) - MOST} more budgets do not hold: {left}{more}"
        lines.append(f"::notice {_TITLE}::{github(message)}")
    title = github_property("memcalc check")
    lines += [f"::warning title={title}::{github(each)}" for each in report.warnings[-MOST:]]
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
