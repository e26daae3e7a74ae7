"""How accurate estimates are: median and worst over runs, and by what the runs share."""

import statistics
from collections.abc import Iterator, Sequence

from memcalc.accuracy.compare import compare, pairs
from memcalc.files.results import Run
from memcalc.records.prediction import ALLOCATOR_RUNGS
from memcalc.report.blocks import Block, Line, Table
from memcalc.report.measured import name, percent

_EXACT = ("weights", "gradients", "optimizer state", "optimizer state (device)")


def blocks(runs: Sequence[Run]) -> list[Block]:
    """Return tables of the peaks' errors: by rung and group, exact parts, largest errors."""
    judged = [
        run
        for run in runs
        if run.measurement is not None and run.measurement.out_of_memory is None
        if run.prediction is not None and run.prediction.method == "trace"
    ]
    left = len(runs) - len(judged)
    lines = [f"{len(judged)} runs with a traced estimate and a measurement"]
    if left:
        lines.append(f"{left} runs left out: failed, out of memory, or without such an estimate")
    tables = [_peak_errors(judged), _exact_parts(judged), _largest_errors(judged)] if judged else []
    return [*map(Line, lines), *tables]


def _group_runs(runs: Sequence[Run]) -> Iterator[tuple[str, list[Run]]]:
    """Yield all runs, then the runs of each model, optimizer and precision."""
    yield "all", list(runs)
    for key in ("model", "optim", "precision"):
        names = dict.fromkeys(getattr(run.plan, key) for run in runs)
        if len(names) > 1:
            for wanted in names:
                yield wanted, [run for run in runs if getattr(run.plan, key) == wanted]


def _peak_errors(runs: Sequence[Run]) -> Table:
    rows = []
    for group, members in _group_runs(runs):
        for rung in ALLOCATOR_RUNGS:
            errors = [one.relative for _, one in pairs(members, rung) if one.relative is not None]
            if errors:
                # Signed, so that one sees on which side it lies.
                worst = max(errors, key=abs)
                median = statistics.median(map(abs, errors))
                rows.append((group, rung, str(len(errors)), f"{median:.3%}", percent(worst, 3)))
    head = ("of", "rung", "runs", "median", "worst")
    return Table(title="Error of the peak", head=head, rows=rows, words=(0, 1))


def _exact_parts(runs: Sequence[Run]) -> Table:
    rows = []
    for part in _EXACT:
        errors = [
            difference.error
            for run in runs
            for difference in compare(run.prediction, run.measurement)  # type: ignore[arg-type]
            if difference.name == part
        ]
        if errors:
            equal = sum(error == 0 for error in errors)
            rows.append((part, str(len(errors)), str(equal), f"{max(errors, key=abs):+,}"))
    head = ("part", "runs", "equal in bytes", "worst error (bytes)")
    return Table(title="Parts that are known exactly", head=head, rows=rows)


def _largest_errors(runs: Sequence[Run]) -> Table:
    found = [
        (run, rung, difference)
        for run in runs
        for rung in ALLOCATOR_RUNGS
        for _, difference in pairs([run], rung)
        if difference.relative is not None
    ]
    found.sort(key=lambda item: -abs(item[2].relative or 0))
    return Table(
        title="Largest errors",
        head=("run", "rung", "estimate", "measured", "error"),
        rows=[
            (
                name(run.plan),
                rung,
                f"{d.predicted:,}",
                f"{d.measured:,}",
                percent(d.relative or 0, 3),
            )
            for run, rung, d in found[:5]
        ],
        words=(0, 1),
    )
