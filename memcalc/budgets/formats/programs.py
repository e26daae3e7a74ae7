"""A report for programs: JSON, JUnit XML and SARIF."""

import hashlib
import json
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree

from memcalc import untrusted_text
from memcalc.budgets.formats import text
from memcalc.budgets.formats.text import change
from memcalc.budgets.records import Report, Status, Verdict
from memcalc.files.artifact import SCHEMA
from memcalc.version import __version__


def as_json(report: Report, *, code: int) -> str:
    """One object; sizes are whole bytes and what is not known is ``null``."""
    body = {
        "schema": SCHEMA,
        "kind": "check",
        "memcalc": __version__,
        "exit_code": code,
        "counts": {status.value: report.count(status) for status in Status},
        "budgets": [_budget(verdict) for verdict in report.verdicts],
        "warnings": list(report.warnings),
        "notes": list(report.notes),
        "versions": report.versions,
    }
    return untrusted_text.json(json.dumps(body, indent=2, ensure_ascii=False)) + "\n"


def _budget(verdict: Verdict) -> dict[str, Any]:
    budget = verdict.budget
    return {
        "run": budget.run,
        "rule": budget.rule.value,
        "metric": budget.metric,
        "gpu": budget.gpu,
        "written": budget.amount.text if budget.amount is not None else None,
        "margin": budget.margin.text if budget.margin is not None else None,
        "file": budget.where.file,
        "line": budget.where.line,
        "status": verdict.status.value,
        "value": verdict.value,
        "limit": verdict.limit,
        "difference": verdict.difference,
        "before": verdict.before,
        "change": change(verdict),
        "parameters": verdict.parameters,
        "source": verdict.source or None,
        "reason": verdict.reason,
        "remedy": verdict.remedy or None,
        "message": text.sentence(verdict),
    }


def as_junit(report: Report) -> str:
    """One suite for each run and one case for each budget: over fails, could not tell errs."""
    root = ElementTree.Element("testsuites", {"name": "memcalc check", **_counts(report.verdicts)})
    groups: dict[str, list[Verdict]] = {}
    for verdict in report.verdicts:
        groups.setdefault(verdict.budget.run, []).append(verdict)
    for run, verdicts in groups.items():
        described = {"name": untrusted_text.line(run), "skipped": "0", **_counts(verdicts)}
        suite = ElementTree.SubElement(root, "testsuite", described)
        for verdict in verdicts:
            _case(suite, verdict)
        if report.warnings:
            noise = ElementTree.SubElement(suite, "system-err")
            noise.text = "\n".join(map(untrusted_text.line, report.warnings))
    ElementTree.indent(root)
    body = untrusted_text.lines(ElementTree.tostring(root, encoding="unicode"))
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{body}\n'


def _case(suite: ElementTree.Element, verdict: Verdict) -> None:
    budget = verdict.budget
    case = ElementTree.SubElement(
        suite,
        "testcase",
        name=untrusted_text.line(budget.name),
        classname=untrusted_text.line(f"memcalc.{budget.run}"),
    )
    message = untrusted_text.line(text.sentence(verdict))
    tags = {Status.OVER: "failure", Status.UNKNOWN: "error"}
    if verdict.status in tags:
        tag = tags[verdict.status]
        found = ElementTree.SubElement(case, tag, message=message, type=verdict.status.value)
        found.text = untrusted_text.line(f"{budget.where}: {text.sentence(verdict)}")
    else:
        ElementTree.SubElement(case, "system-out").text = message


def _counts(verdicts: tuple[Verdict, ...] | list[Verdict]) -> dict[str, str]:
    return {
        "tests": str(len(verdicts)),
        "failures": str(sum(verdict.status is Status.OVER for verdict in verdicts)),
        "errors": str(sum(verdict.status is Status.UNKNOWN for verdict in verdicts)),
    }


_SARIF = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)
_RULES = {
    Status.OVER: ("over-budget", "A training run costs more memory than its budget."),
    Status.UNKNOWN: ("could-not-tell", "A memory budget could not be judged."),
}


def as_sarif(report: Report, *, code: int) -> str:
    """One run with a result for each budget that is not green."""
    level = {"level": "error"}
    rules = [
        {"id": name, "shortDescription": {"text": told}, "defaultConfiguration": level}
        for name, told in _RULES.values()
    ]
    run = {
        "tool": {"driver": {"name": "memcalc", "version": __version__, "rules": rules}},
        "results": [_sarif_result(verdict) for verdict in report.failures],
        "columnKind": "unicodeCodePoints",
        "invocations": [
            {
                "executionSuccessful": not report.count(Status.UNKNOWN),
                "exitCode": code,
                "toolExecutionNotifications": [
                    {"level": "warning", "message": {"text": _plain(warning)}}
                    for warning in report.warnings
                ],
            }
        ],
    }
    body = {"$schema": _SARIF, "version": "2.1.0", "runs": [run]}
    return untrusted_text.json(json.dumps(body, indent=2)) + "\n"


def _sarif_result(verdict: Verdict) -> dict[str, Any]:
    budget = verdict.budget
    name, _ = _RULES[verdict.status]
    # The same budget is the same alert, wherever in the file it moves.
    file = text.in_repository(budget.where.file)
    identity = f"{file}\0{budget.run}\0{budget.rule}\0{budget.metric}"
    known = hashlib.sha256(identity.encode("utf-8", "backslashreplace")).hexdigest()
    return {
        "ruleId": name,
        "ruleIndex": list(_RULES).index(verdict.status),
        "level": "error",
        "message": {"text": _plain(text.sentence(verdict))},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": quote(file, errors="backslashreplace")},
                    "region": {"startLine": budget.where.line},
                }
            }
        ],
        "partialFingerprints": {"budget/v1": known[:32]},
    }


def _plain(text: str) -> str:
    """A message without links of its own (SARIF 2.1.0, 3.11.6)."""
    return untrusted_text.line(text).replace("](", "] (")
