"""Predictions as a table that a person reads in five seconds."""

from __future__ import annotations

import io
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from memcalc.records.model import Place
from memcalc.records.prediction import RUNGS, Prediction
from memcalc.report import rows
from memcalc.units import format_bytes, format_mib

WIDTH = 100


def render(predictions: Sequence[Prediction], *, color: bool = False, width: int = WIDTH) -> str:
    """One prediction in full, or several side by side."""
    out = io.StringIO()
    console = Console(
        file=out, width=width, force_terminal=color, no_color=not color, highlight=False
    )
    if len(predictions) == 1:
        _single(console, predictions[0])
    else:
        _compare(console, predictions)
    return out.getvalue()


def _single(console: Console, prediction: Prediction) -> None:
    console.print(Text(rows.heading(prediction), style="bold"))
    console.print(
        f"{prediction.parameters:,} parameters in {prediction.parameter_tensors} tensors, "
        f"{prediction.trainable:,} trainable"
    )
    console.print(_components(prediction))
    console.print(_phases(prediction))
    rungs = [f"{name} {value}" for name, value in rows.ladder_words(prediction)]
    if prediction.context is not None:
        console.print("  ".join(rungs[:-1]))
        console.print(rungs[-1])
    else:
        console.print("  ".join(rungs))
    verdict = rows.verdict(prediction)
    if verdict:
        style = "bold green" if verdict.startswith("fits") else "bold red"
        console.print(Text(verdict, style=style))
    console.print(f"optimizer state: {rows.state_words(prediction)}")
    for note in prediction.optimizer_state.notes:
        console.print(f"  {note}")
    _rules(console, prediction)
    _footnotes(console, prediction)


def _components(prediction: Prediction) -> Table:
    peak = prediction.peak
    table = Table(title=f"At the peak, in {peak.phase.value}", title_justify="left", box=None)
    table.add_column("component")
    for name in ("bytes", "share", "bytes/param"):
        table.add_column(name, justify="right")
    for name, size, share, each in rows.component_rows(prediction):
        table.add_row(name, format_bytes(size), f"{share:.1%}", f"{each:.2f}")
    total = sum(prediction.components.values())
    each = total / max(prediction.parameters, 1)
    table.add_row("total", format_mib(total), "100.0%", f"{each:.2f}", style="bold")
    return table


def _phases(prediction: Prediction) -> Table:
    table = Table(title="Peak by phase", title_justify="left", box=None)
    table.add_column("phase")
    replayed = prediction.peak.allocated is not None
    for name in ("allocated", "reserved", "first step") if replayed else ("requested",):
        table.add_column(name, justify="right")
    for phase in prediction.phases:
        rungs = (phase.allocated, phase.reserved, phase.first_step_allocated)
        table.add_row(
            phase.phase.value,
            *(_cell(value) for value in (rungs if replayed else (phase.requested,))),
            style="bold" if phase.phase is prediction.peak.phase else None,
        )
    return table


def _cell(value: int | None) -> str:
    return format_mib(value) if value is not None else ""


def _rules(console: Console, prediction: Prediction) -> None:
    for rule in prediction.rules_of_thumb:
        console.print(
            f"rule of thumb: {rule.name}, {rule.bytes_per_parameter:g} bytes/parameter: "
            f"{format_mib(rule.bytes)}",
            style="dim",
        )


def _footnotes(console: Console, prediction: Prediction) -> None:
    if prediction.assumptions:
        console.print("assumed: " + "; ".join(prediction.assumptions), style="dim")
    if prediction.uncounted:
        console.print("not counted: " + "; ".join(prediction.uncounted), style="dim")


def _state(prediction: Prediction) -> str:
    state = prediction.optimizer_state
    return format_mib(state.total(Place.DEVICE) + state.total(Place.MANAGED))


def _compare(console: Console, predictions: Sequence[Prediction]) -> None:
    first = predictions[0]
    console.print(Text(rows.heading(first).replace(f" {first.plan.optim},", ""), style="bold"))
    table = Table(box=None)
    table.add_column("optimizer")
    for name in ("state", "peak phase", *(rung.replace("_", " ") for rung in RUNGS)):
        table.add_column(name, justify="right")
    ordered = sorted(predictions, key=lambda p: p.peak.allocated or p.peak.requested)
    for prediction in ordered:
        peak = prediction.peak
        table.add_row(
            prediction.plan.optim,
            _state(prediction),
            peak.phase.value,
            *(
                format_mib(value) if value is not None else "n/a"
                for value in (peak.requested, peak.allocated, peak.reserved, peak.process_used)
            ),
        )
    console.print(table)
    _footnotes(console, first)
