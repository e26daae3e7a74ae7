"""Predictions as CSV: one row each, bytes unrounded."""

import csv
import io
from collections.abc import Sequence

from memcalc import untrusted_text
from memcalc.records.prediction import RUNGS, Prediction
from memcalc.records.trace import Component


def render(predictions: Sequence[Prediction]) -> str:
    """A header and one row for each prediction; what is not known is empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        ["model", "task", "optim", "precision", "batch", "seq", "parameters", "trainable"]
        + [component.value for component in Component]
        + ["peak_phase", *RUNGS, "method"]
    )
    for p in predictions:
        plan = p.plan
        settings = [plan.model, p.task, plan.optim, plan.precision, plan.batch, p.seq]
        if plan.command is not None:
            # A script has settings of its own, which nobody reads.
            optim = p.optimizer_state.optimizer if p.optimizer_state is not None else None
            settings = [plan.name, p.task, optim, None, None, None]
        row = [
            *settings,
            *(p.parameters, p.trainable, *(p.components.get(part) for part in Component)),
            *(p.peak.phase.value, *(getattr(p.peak, rung) for rung in RUNGS), p.method),
        ]
        writer.writerow(map(untrusted_text.cell, row))
    return out.getvalue()
