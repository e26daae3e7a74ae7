"""How accurate estimates are: median and worst over runs, and by what the runs share."""

from __future__ import annotations

import io
import statistics
from collections.abc import Callable, Iterator, Sequence

from rich.console import Console
from rich.table import Table

from memcalc.accuracy.compare import compare, peak
from memcalc.files.results import Run
from memcalc.records.prediction import ALLOCATOR_RUNGS
from memcalc.report.measured import WIDTH, name

_EXACT = ("weights", "gradients", "optimizer state", "optimizer state (device)")


def accuracy(runs: Sequence[Run], width: int = WIDTH) -> str:
    """Errors of the peaks by rung, model, optimizer and precision; the largest run by run."""
    out = io.StringIO()
    console = Console(file=out, width=width, no_color=True, highlight=False, markup=False)
    judged = [run for run in runs if _judged(run)]
    left = len(runs) - len(judged)
    console.print(f"{len(judged)} runs with a traced estimate and a measurement")
    if left:
        console.print(f"{left} runs left out: failed, out of memory, or without such an estimate")
    if judged:
        console.print(_peaks(judged))
        console.print(_parts(judged))
        console.print(_worst(judged))
    return out.getvalue()


def _judged(run: Run) -> bool:
    measured, predicted = run.measurement, run.prediction
    if measured is None or predicted is None or measured.out_of_memory is not None:
        return False
    return predicted.method == "trace"


def _groups(runs: Sequence[Run]) -> Iterator[tuple[str, list[Run]]]:
    yield "all", list(runs)
    by: tuple[Callable[[Run], str], ...] = (
        lambda run: run.plan.model,
        lambda run: run.plan.optim,
        lambda run: run.plan.precision,
    )
    for key in by:
        names = dict.fromkeys(key(run) for run in runs)
        if len(names) > 1:
            for wanted in names:
                yield wanted, [run for run in runs if key(run) == wanted]


def _peaks(runs: Sequence[Run]) -> Table:
    table = Table(title="Error of the peak", title_justify="left", box=None)
    for head in ("of", "rung", "runs", "median", "worst"):
        table.add_column(head, justify="left" if head in ("of", "rung") else "right")
    for group, members in _groups(runs):
        for rung in ALLOCATOR_RUNGS:
            errors = [e for run in members if (e := _error(run, rung)) is not None]
            if errors:
                # Signed, so that one sees on which side it lies.
                worst = max(errors, key=abs)
                median = statistics.median(map(abs, errors))
                table.add_row(group, rung, str(len(errors)), f"{median:.3%}", f"{worst:+.3%}")
    return table


def _error(run: Run, rung: str) -> float | None:
    assert run.prediction is not None
    assert run.measurement is not None
    difference = peak(run.prediction, run.measurement, rung)
    return difference.relative if difference is not None else None


def _parts(runs: Sequence[Run]) -> Table:
    table = Table(title="Parts that are known exactly", title_justify="left", box=None)
    for head in ("part", "runs", "equal in bytes", "worst error (bytes)"):
        table.add_column(head, justify="left" if head == "part" else "right")
    for part in _EXACT:
        errors = [
            difference.error
            for run in runs
            for difference in compare(run.prediction, run.measurement)  # type: ignore[arg-type]
            if difference.name == part
        ]
        if errors:
            equal = sum(error == 0 for error in errors)
            table.add_row(part, str(len(errors)), str(equal), f"{max(errors, key=abs):+,}")
    return table


def _worst(runs: Sequence[Run], count: int = 5) -> Table:
    table = Table(title="Largest errors", title_justify="left", box=None)
    for head in ("run", "rung", "estimate", "measured", "error"):
        table.add_column(head, justify="left" if head in ("run", "rung") else "right")
    found = [
        (run, rung, difference)
        for run in runs
        for rung in ALLOCATOR_RUNGS
        if (difference := peak(run.prediction, run.measurement, rung))  # type: ignore[arg-type]
        and difference.relative is not None
    ]
    found.sort(key=lambda item: -abs(item[2].relative or 0))
    for run, rung, item in found[:count]:
        figures = (f"{item.predicted:,}", f"{item.measured:,}", f"{item.relative:+.3%}")
        table.add_row(name(run.plan), rung, *figures)
    return table
