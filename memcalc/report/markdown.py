"""Predictions as Markdown tables."""

from __future__ import annotations

from collections.abc import Sequence

from memcalc.records.prediction import Prediction
from memcalc.report import rows
from memcalc.units import format_bytes, format_mib


def render(predictions: Sequence[Prediction]) -> str:
    """One section for each prediction."""
    return "\n".join(_section(prediction) for prediction in predictions)


def grid(header: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """A table whose first column is text and whose others are figures."""
    lines = [
        "| " + " | ".join(header) + " |",
        "| --- |" + " ---: |" * (len(header) - 1),
        *("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in body),
    ]
    return "\n".join(lines) + "\n"


def _section(prediction: Prediction) -> str:
    components = [
        (name, format_bytes(size), f"{share:.1%}", f"{each:.2f}")
        for name, size, share, each in rows.component_rows(prediction)
    ]
    phases = [
        (
            phase.phase.value,
            rows.unknown_or(prediction, phase.allocated, "allocated"),
            format_mib(phase.reserved) if phase.reserved is not None else "n/a",
        )
        for phase in prediction.phases
    ]
    parts = [
        f"### {rows.heading(prediction)}\n",
        grid(("component at the peak", "bytes", "share", "bytes/param"), components),
        grid(("phase", "allocated", "reserved"), phases),
        grid(("peak", "bytes"), rows.ladder(prediction)),
    ]
    verdict = rows.verdict(prediction)
    if verdict:
        parts.append(f"**{verdict}**\n")
    return "\n".join(parts)
