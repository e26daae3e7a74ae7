"""A check of memory budgets for forges and programs: Markdown, annotations, JSON, JUnit, SARIF."""

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree

from memcalc import untrusted_text
from memcalc.budgets.records import Report, Status, Verdict
from memcalc.files.artifact import document, encode
from memcalc.report import checked
from memcalc.report.checked import path_in_repository, sentence, summary
from memcalc.untrusted_text import github, github_property
from memcalc.version import __version__


def writers(
    report: Report, code: int, *, only_failures: bool = False
) -> dict[str, Callable[[], str]]:
    """Return a function that writes the report in each format but the table, by format name."""
    return {
        "json": partial(as_json, report, code),
        "markdown": partial(as_markdown, report, only_failures=only_failures),
        "github": partial(as_annotations, report),
        "junit": partial(as_junit, report),
        "sarif": partial(as_sarif, report, code),
    }


def as_json(report: Report, code: int) -> str:
    """Return a budget report as a JSON object; sizes are whole bytes, unknown ones null."""
    return document(
        "check",
        {
            "exit_code": code,
            "counts": {status.value: report.count(status) for status in Status},
            "budgets": [_flatten(verdict) for verdict in report.verdicts],
            **{name: encode(getattr(report, name)) for name in ("warnings", "notes", "versions")},
        },
    )


def _flatten(verdict: Verdict) -> dict[str, Any]:
    """Return a verdict and its budget as one JSON object."""
    budget = verdict.budget
    return {
        **{name: getattr(budget, name) for name in ("run", "rule", "metric", "gpu")},
        "written": budget.amount.text if budget.amount is not None else None,
        "margin": budget.margin.text if budget.margin is not None else None,
        **encode(budget.where),
        **{name: getattr(verdict, name) for name in ("status", "value", "limit", "difference")},
        **{name: getattr(verdict, name) for name in ("before", "change", "parameters", "reason")},
        **{name: getattr(verdict, name) or None for name in ("source", "remedy")},
        "message": sentence(verdict),
    }


MARKER = "<!-- memcalc:check -->"
"""The first line of a comment, by which a bot finds and updates it."""
_OPEN_ROWS = 10
_LONGEST = 60_000
"""GitHub refuses a comment of more than 65,536 characters."""
_HEAD = ("run", "budget", "before", "after", "change", "limit", "verdict")
_SIGNS = {
    Status.OVER: "❌ **over**",
    Status.UNKNOWN: "⚠️ **could not tell**",
    Status.HOLDS: "✅ ok",
}


def as_markdown(report: Report, *, only_failures: bool = False) -> str:
    """Return a budget report as Markdown, failures first, long tables folded."""
    shown = report.failures if only_failures else report.verdicts
    failures = len(report.failures)
    verdict = "Memory budgets hold" if not failures else "Memory budgets do not hold"
    parts = [f"{MARKER}\n### {verdict}\n\n{summary(report)}.\n"]
    open_rows = max(_OPEN_ROWS, failures)
    if shown:
        parts.append(_make_table(shown[:open_rows]))
    reasons = checked.reasons(report).items()
    parts.append("".join(f"- {_escape(f'{names}: {reason}')}\n" for names, reason in reasons))
    rest = shown[open_rows:]
    if rest:
        title = f"<summary>{len(rest)} more</summary>"
        parts.append(f"<details>\n{title}\n\n{_make_table(rest)}\n</details>\n")
    parts += [f"> {_escape(text)}\n" for text in (*report.warnings, *report.notes)]
    return _cut_to_comment("\n".join(filter(None, parts)))


def _escape(text: str) -> str:
    return untrusted_text.markdown(checked.one_line(text))


def _make_table(verdicts: Sequence[Verdict]) -> str:
    return untrusted_text.grid(_HEAD, list(map(_make_cells, verdicts)), words=(0, 1, 6))


def _make_cells(verdict: Verdict) -> tuple[str, ...]:
    texts, said = checked.row(verdict), _SIGNS[verdict.status]
    if verdict.status is Status.OVER and texts.difference:
        said += f" by {texts.difference.removeprefix('+')}"
    # A number does not part from its unit.
    figures = (
        _escape(text).replace(" ", "\u00a0").replace("\u00a0(", " (") or "n/a"
        for text in (texts.before, texts.value, texts.change, texts.written)
    )
    return (_escape(verdict.budget.run), _escape(verdict.budget.name), *figures, said)


def _cut_to_comment(text: str) -> str:
    if len(text) <= _LONGEST:
        return text
    cut = text[:_LONGEST].rsplit("\n", 1)[0]
    ended = "\n</details>\n" if cut.count("<details>") > cut.count("</details>") else "\n"
    return f"{cut}\n{ended}\n> The rest does not fit in a comment: see the log of the job.\n"


_PLACE = re.compile(r"([^:]+):(\d+): (.*)", re.DOTALL)
_TITLE = "title=memcalc check"
_MOST = 10
"""GitHub shows ten annotations of a kind for each step and drops the rest without a word."""


def as_annotations(report: Report) -> str:
    """Return a budget report as GitHub workflow commands, with a summary line."""
    failures = report.failures
    lines = [_annotate(verdict) for verdict in failures[:_MOST]]
    if len(failures) > _MOST:
        left = ", ".join(f"{v.budget.run} {v.budget.name}" for v in failures[_MOST : 2 * _MOST])
        more = " and others" if len(failures) > 2 * _MOST else ""
        message = f"{len(failures) - _MOST} more budgets do not hold: {left}{more}"
        lines.append(f"::notice {_TITLE}::{github(message)}")
    lines += [f"::warning {_TITLE}::{github(each)}" for each in report.warnings[-_MOST:]]
    return "\n".join([*lines, summary(report)]) + "\n"


def annotate_refusal(message: str) -> str:
    """Return an error as a GitHub annotation on the file and line its message names."""
    match = _PLACE.match(message)
    if match is None:
        return f"::error {_TITLE}::{github(message)}\n"
    file = github_property(path_in_repository(match[1]))
    return f"::error file={file},line={match[2]},{_TITLE}::{github(match[3])}\n"


def _annotate(verdict: Verdict) -> str:
    where = verdict.budget.where
    title = github_property(f"memcalc: {verdict.budget.run} {verdict.budget.name}")
    file = github_property(path_in_repository(where.file))
    return f"::error file={file},line={where.line},title={title}::{github(sentence(verdict))}"


_TAGS = {Status.OVER: "failure", Status.UNKNOWN: "error"}


def as_junit(report: Report) -> str:
    """Return a budget report as JUnit XML: a suite per run, a case per budget."""
    root = ElementTree.Element("testsuites", {"name": "memcalc check", **_count(report.verdicts)})
    groups: dict[str, list[Verdict]] = {}
    for verdict in report.verdicts:
        groups.setdefault(verdict.budget.run, []).append(verdict)
    for run, verdicts in groups.items():
        described = {"name": untrusted_text.line(run), "skipped": "0", **_count(verdicts)}
        suite = ElementTree.SubElement(root, "testsuite", described)
        for verdict in verdicts:
            _add_case(suite, verdict)
        if report.warnings:
            noise = ElementTree.SubElement(suite, "system-err")
            noise.text = "\n".join(map(untrusted_text.line, report.warnings))
    ElementTree.indent(root)
    body = untrusted_text.lines(ElementTree.tostring(root, encoding="unicode"))
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{body}\n'


def _add_case(suite: ElementTree.Element, verdict: Verdict) -> None:
    budget, message = verdict.budget, sentence(verdict)
    names = {"name": budget.name, "classname": f"memcalc.{budget.run}"}
    attributes = {key: untrusted_text.line(name) for key, name in names.items()}
    case = ElementTree.SubElement(suite, "testcase", attributes)
    if tag := _TAGS.get(verdict.status):
        found = ElementTree.SubElement(case, tag, message=message, type=verdict.status.value)
        found.text = untrusted_text.line(f"{budget.where}: {message}")
    else:
        ElementTree.SubElement(case, "system-out").text = message


def _count(verdicts: Sequence[Verdict]) -> dict[str, str]:
    """Return the numbers of tests, failures and errors as XML attributes."""
    counts = {f"{tag}s": sum(v.status is status for v in verdicts) for status, tag in _TAGS.items()}
    return {"tests": str(len(verdicts)), **{name: str(count) for name, count in counts.items()}}


_SARIF = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)
_RULES = {
    Status.OVER: ("over-budget", "A training run costs more memory than its budget."),
    Status.UNKNOWN: ("could-not-tell", "A memory budget could not be judged."),
}


def as_sarif(report: Report, code: int) -> str:
    """Return a budget report as SARIF, with a result for each budget that does not hold."""
    level = {"level": "error"}
    rules = [
        {"id": name, "shortDescription": {"text": text}, "defaultConfiguration": level}
        for name, text in _RULES.values()
    ]
    warnings = [{"level": "warning", "message": _message(text)} for text in report.warnings]
    run = {
        "tool": {"driver": {"name": "memcalc", "version": __version__, "rules": rules}},
        "results": [_sarif_result(verdict) for verdict in report.failures],
        "columnKind": "unicodeCodePoints",
        "invocations": [
            {
                "executionSuccessful": not report.count(Status.UNKNOWN),
                "exitCode": code,
                "toolExecutionNotifications": warnings,
            }
        ],
    }
    body = {"$schema": _SARIF, "version": "2.1.0", "runs": [run]}
    return untrusted_text.json(json.dumps(body, indent=2)) + "\n"


def _sarif_result(verdict: Verdict) -> dict[str, Any]:
    budget = verdict.budget
    # The same budget is the same alert, wherever in the file it moves.
    file = path_in_repository(budget.where.file)
    identity = f"{file}\0{budget.run}\0{budget.rule}\0{budget.metric}"
    known = hashlib.sha256(identity.encode("utf-8", "backslashreplace")).hexdigest()
    place = {
        "artifactLocation": {"uri": quote(file, errors="backslashreplace")},
        "region": {"startLine": budget.where.line},
    }
    return {
        "ruleId": _RULES[verdict.status][0],
        "ruleIndex": list(_RULES).index(verdict.status),
        "level": "error",
        "message": _message(sentence(verdict)),
        "locations": [{"physicalLocation": place}],
        "partialFingerprints": {"budget/v1": known[:32]},
    }


def _message(text: str) -> dict[str, str]:
    """Return a SARIF message object whose text has no links (SARIF 2.1.0, 3.11.6)."""
    return {"text": untrusted_text.line(text).replace("](", "] (")}
