"""A report as JSON; the keys are a contract, see docs/ci.md."""

import json
from typing import Any

from memcalc import untrusted_text
from memcalc.budgets.formats import text
from memcalc.budgets.formats.text import change
from memcalc.budgets.records import Report, Status, Verdict
from memcalc.version import __version__

SCHEMA = 1


def render(report: Report, *, code: int) -> str:
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
