"""Measurements beside their predictions, as tables."""

from __future__ import annotations

import io
import statistics
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from memcalc.compare import RUNGS, Difference, compare, peak
from memcalc.results import Run
from memcalc.units import format_mib

WIDTH = 110


def render(runs: Sequence[Run]) -> str:
    """One line a run; with a single run, every figure that both sides have."""
    out = io.StringIO()
    console = Console(file=out, width=WIDTH, no_color=True, highlight=False)
    table = Table(box=None)
    for name in ("run", "time/step", "samples/s", "allocated", "estimate", "error", "reserved"):
        table.add_column(name, justify="left" if name == "run" else "right")
    for run in runs:
        table.add_row(*_row(run))
    console.print(table)
    for run in runs:
        if run.error or (run.measurement and run.measurement.out_of_memory):
            console.print(f"{_name(run)}: {_trouble(run)}")
    if len(runs) == 1 and runs[0].prediction and runs[0].measurement:
        console.print(_details(compare(runs[0].prediction, runs[0].measurement)))
    return out.getvalue()


def accuracy(runs: Sequence[Run]) -> str:
    """Median and worst error of the peak, over all runs and by what they share."""
    out = io.StringIO()
    console = Console(file=out, width=WIDTH, no_color=True, highlight=False)
    table = Table(box=None)
    for name in ("runs", "of", "rung", "median", "worst"):
        table.add_column(name, justify="left" if name in ("of", "rung") else "right")
    groups: dict[str, list[Run]] = {"all": [r for r in runs if r.prediction and r.measurement]}
    for run in groups["all"]:
        for key in (run.plan.model, run.plan.optim, run.plan.precision):
            groups.setdefault(key, []).append(run)
    for name, members in groups.items():
        for rung in RUNGS:
            errors = [e for run in members if (e := _relative(run, rung)) is not None]
            if errors:
                median, worst = statistics.median(errors), max(errors)
                table.add_row(str(len(errors)), name, rung, f"{median:.3%}", f"{worst:.3%}")
    console.print(table)
    return out.getvalue()


def _relative(run: Run, rung: str) -> float | None:
    assert run.prediction is not None
    assert run.measurement is not None
    difference = peak(run.prediction, run.measurement, rung)
    return abs(difference.relative) if difference and difference.relative is not None else None


def _name(run: Run) -> str:
    plan = run.plan
    return f"{plan.model} {plan.optim} {plan.precision}"


def _trouble(run: Run) -> str:
    if run.measurement is not None and run.measurement.out_of_memory is not None:
        failed = run.measurement.out_of_memory
        return f"out of memory in {failed.phase.value} of step {failed.step}: {failed.message}"
    return run.error or ""


def _row(run: Run) -> list[str]:
    measured = run.measurement
    if measured is None:
        return [_name(run), "failed", "", "", "", "", ""]
    seconds, samples = measured.seconds_per_step, measured.samples_per_second
    found = {rung: _peak(run, rung) for rung in RUNGS}
    allocated, reserved = found["allocated"], found["reserved"]
    return [
        _name(run),
        f"{seconds:.3f} s" if seconds is not None else "n/a",
        f"{samples:.2f}" if samples is not None else "n/a",
        format_mib(allocated.measured) if allocated else "n/a",
        format_mib(allocated.predicted) if allocated else "n/a",
        f"{allocated.relative:+.2%}" if allocated and allocated.relative is not None else "n/a",
        format_mib(reserved.measured) if reserved else "n/a",
    ]


def _peak(run: Run, rung: str) -> Difference | None:
    if run.prediction is None or run.measurement is None:
        return None
    return peak(run.prediction, run.measurement, rung)


def _details(differences: Sequence[Difference]) -> Table:
    table = Table(title="Estimate against measurement, worst first", box=None, title_justify="left")
    table.add_column("figure")
    for name in ("estimate", "measured", "error (bytes)", "error"):
        table.add_column(name, justify="right")
    for item in differences:
        relative = f"{item.relative:+.3%}" if item.relative is not None else ""
        table.add_row(
            item.name, f"{item.predicted:,}", f"{item.measured:,}", f"{item.error:+,}", relative
        )
    return table
