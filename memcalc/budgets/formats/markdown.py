"""A report as a comment on a pull request."""

from __future__ import annotations

import html
import re

from memcalc.budgets.formats import words
from memcalc.budgets.records import Report, Status, Verdict

MARKER = "<!-- memcalc:check -->"
"""On the first line, so that a bot finds the comment it wrote and updates it."""
OPEN_ROWS = 10
_LONGEST = 60_000
"""GitHub refuses a comment of more than 65,536 characters."""
_HEAD = (
    "| run | budget | before | after | change | limit | verdict |\n"
    "| :-- | :-- | --: | --: | --: | --: | :-- |\n"
)
_SIGNS = {
    Status.OVER: "❌ **over**",
    Status.UNKNOWN: "⚠️ **could not tell**",
    Status.NO_BASELINE: "no baseline",
    Status.HOLDS: "✅ ok",
}
_LEADING = re.compile(r"^(\d*)([-+=.)])")
"""What makes a list, or a line, of text that begins with it."""
_SPECIAL = re.compile(r"[\\`*\[\]#|~@$]|(?<![^\W_])_|_(?![^\W_])")


def render(report: Report, *, only_failures: bool = False) -> str:
    """One table, failures first; what is more than ten rows is folded, but never a failure."""
    shown = report.failures if only_failures else report.verdicts
    failures = len(report.failures)
    verdict = "Memory budgets hold" if not failures else "Memory budgets do not hold"
    parts = [f"{MARKER}\n### {verdict}\n\n{words.summary(report)}.\n"]
    open_rows = max(OPEN_ROWS, failures)
    if shown:
        parts.append(_HEAD + "".join(_row(verdict) for verdict in shown[:open_rows]))
    parts.append("".join(_reason(verdict) for verdict in report.failures))
    rest = shown[open_rows:]
    if rest:
        folded = "".join(_row(verdict) for verdict in rest)
        title = f"{len(rest)} more"
        parts.append(f"<details>\n<summary>{title}</summary>\n\n{_HEAD}{folded}\n</details>\n")
    parts += [f"> {escape(text)}\n" for text in (*report.warnings, *report.notes)]
    return _bounded(parts)


def escape(text: str) -> str:
    """Text that Markdown takes as text, on one line."""
    plain = html.escape(words.one_line(text), quote=False)
    plain = _SPECIAL.sub(lambda match: f"&#{ord(match[0])};", plain)
    return _LEADING.sub(lambda match: f"{match[1]}&#{ord(match[2])};", plain)


def _row(verdict: Verdict) -> str:
    before, changed = words.before_and_change(verdict)
    value, _, difference = words.comparison(verdict)
    said = _SIGNS[verdict.status]
    if verdict.status is Status.OVER and difference:
        said += f" by {difference.removeprefix('+')}"
    cells = (
        escape(verdict.budget.run),
        escape(verdict.budget.name),
        *(_figure(text) for text in (before, value, changed, words.limit(verdict))),
        said,
    )
    return "| " + " | ".join(cells) + " |\n"


def _reason(verdict: Verdict) -> str:
    why = words.why(verdict)
    name = f"{verdict.budget.run} {verdict.budget.name}"
    return f"- {escape(f'{name}: {why}')}\n" if why else ""


def _figure(text: str) -> str:
    """A number that does not part from its unit."""
    return escape(text).replace(" ", "\u00a0").replace("\u00a0(", " (") or "n/a"


def _bounded(parts: list[str]) -> str:
    text = "\n".join(part for part in parts if part)
    if len(text) <= _LONGEST:
        return text
    cut = text[:_LONGEST].rsplit("\n", 1)[0]
    ended = "\n</details>\n" if cut.count("<details>") > cut.count("</details>") else "\n"
    return f"{cut}\n{ended}\n> There is more than fits a comment: see the log of the job.\n"
