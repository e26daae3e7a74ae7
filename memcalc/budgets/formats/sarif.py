"""A report as SARIF 2.1.0, which code scanning reads: what fails, at its line."""

import hashlib
import json
from typing import Any
from urllib.parse import quote

from memcalc import untrusted_text
from memcalc.budgets.formats import text
from memcalc.budgets.records import Report, Status, Verdict
from memcalc.version import __version__

_SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)
_RULES = {
    Status.OVER: ("over-budget", "A training run costs more memory than its budget."),
    Status.UNKNOWN: ("could-not-tell", "A memory budget could not be judged."),
}


def render(report: Report, *, code: int) -> str:
    """One run with a result for each budget that is not green."""
    level = {"level": "error"}
    rules = [
        {"id": name, "shortDescription": {"text": told}, "defaultConfiguration": level}
        for name, told in _RULES.values()
    ]
    run = {
        "tool": {"driver": {"name": "memcalc", "version": __version__, "rules": rules}},
        "results": [_result(verdict) for verdict in report.failures],
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
    body = {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}
    return untrusted_text.json(json.dumps(body, indent=2)) + "\n"


def _result(verdict: Verdict) -> dict[str, Any]:
    budget = verdict.budget
    rules = list(_RULES)
    name, _ = _RULES[verdict.status]
    # The same budget is the same alert, wherever in the file it moves.
    file = text.in_repository(budget.where.file)
    identity = f"{file}\0{budget.run}\0{budget.rule}\0{budget.metric}"
    known = hashlib.sha256(identity.encode("utf-8", "backslashreplace")).hexdigest()
    return {
        "ruleId": name,
        "ruleIndex": rules.index(verdict.status),
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
