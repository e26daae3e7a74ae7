"""Predictions and explanations as a notebook shows them: a picture where one can be drawn."""

from __future__ import annotations

from html import escape

from memcalc.errors import UsageError
from memcalc.explanation.records import Explanation
from memcalc.records.prediction import Prediction
from memcalc.report import page_parts as pieces
from memcalc.report import plots, rows


def html(record: Prediction | Explanation) -> str:
    """A record as a notebook shows it."""
    return prediction(record) if isinstance(record, Prediction) else explanation(record)


def prediction(found: Prediction) -> str:
    """A prediction: its components as a bar, and its tables."""
    parts = [f"<p><b>{escape(rows.heading(found))}</b></p>", _bar(found)]
    verdict = rows.verdict(found)
    parts += [f"<p>{escape(verdict)}</p>"] if verdict else []
    parts += [pieces.phases(found), pieces.components(found), pieces.footnotes(found)]
    return f"<div>{''.join(parts)}</div>"


def explanation(found: Explanation) -> str:
    """An explanation: what is alive at the peak, and what would need less."""
    parts = [f"<p><b>{escape(rows.heading(found.prediction))}</b></p>", _bar(found.prediction)]
    parts += [pieces.peak(found.peak), *pieces.remedies(found)]
    return f"<div>{''.join(parts)}</div>"


def _bar(found: Prediction) -> str:
    try:
        return pieces.picture(plots.optimizers([found]), "requested bytes at the peak")
    except UsageError:
        # Without matplotlib the tables say the same.
        return ""
