"""``memcalc measure`` and ``memcalc compare``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec.structs import replace

from memcalc.accuracy.campaign import How, Watcher, estimate_all, measure_all
from memcalc.catalog.plan import TARGETS
from memcalc.cli.live import follow, width
from memcalc.cli.options import guarded, plans_of, say, with_plan
from memcalc.errors import UsageError
from memcalc.files.results import ResultsWriter, Run, keeping, load
from memcalc.records.plan import Plan


@with_plan
def command(
    settings: dict[str, Any],
    suite: Annotated[
        Path | None, typer.Option(help="Suite file with many runs.", show_default=False)
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="cuda or cpu. Default: --target.", show_default=False)
    ] = None,
    steps: Annotated[
        int, typer.Option(help="Optimizer steps: the first, warm-up, the last is measured.")
    ] = 4,
    weights: Annotated[
        bool,
        typer.Option("--weights", help="Load real weights (safetensors) instead of random ones."),
    ] = False,
    timeout: Annotated[float, typer.Option(help="Seconds for one run.")] = 600.0,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Keep results here.", show_default=False)
    ] = None,
    more: Annotated[
        bool, typer.Option("--continue", help="Go on with the output file; skip what it has.")
    ] = False,
    estimate: Annotated[bool, typer.Option(help="Put the estimate beside each run.")] = True,
    snapshot: Annotated[
        Path | None, typer.Option(help="Dump PyTorch's memory snapshot.", show_default=False)
    ] = None,
) -> None:
    """Train for real, one child process a run, and put the estimate beside it."""
    if steps < 2:
        raise UsageError("--steps is at least 2: the first step differs from all others.")
    if not timeout > 0:
        raise UsageError("--timeout is a number of seconds above 0.")
    plans = _plans(settings, suite, device)
    if snapshot is not None and (len(plans) > 1 or plans[0].target != "cuda"):
        raise UsageError("--snapshot is for a single run on cuda: name one optimizer.")
    how = How(
        steps=steps,
        timeout=timeout,
        weights=weights,
        snapshot=str(snapshot) if snapshot is not None else None,
    )
    with keeping(output, more=more, say=say) as writer, follow() as watcher:
        finished = _measure(plans, how, writer, watcher) and _estimate(writer, watcher, estimate)
        saved = writer.finish()
    _report(writer.runs)
    if not finished:
        raise typer.Exit(130)
    if not saved or all(run.measurement is None for run in writer.runs):
        raise typer.Exit(3)


def _measure(plans: list[Plan], how: How, writer: ResultsWriter, watcher: Watcher) -> bool:
    """Measure what the file does not have yet; False: interrupted."""
    done = [run.plan for run in writer.runs if run.measurement is not None]
    again = [plan for plan in plans if plan not in done]
    writer.runs[:] = [run for run in writer.runs if run.plan not in again]
    runs = measure_all(again, how, watcher)
    try:
        for run in runs:
            writer.add(run)
    except KeyboardInterrupt:
        return False
    finally:
        runs.close()
    return True


def _estimate(writer: ResultsWriter, watcher: Watcher, wanted: bool) -> bool:
    """Put estimates beside the runs; False: interrupted."""
    if wanted:
        try:
            for number, run in estimate_all(writer.runs, watcher):
                writer.runs[number] = run
        except KeyboardInterrupt:
            return False
        finally:
            writer.write()
    return True


def _report(runs: list[Run]) -> None:
    if runs:
        from memcalc.report import measured

        sys.stdout.write(measured.render(runs, width()))


def _plans(settings: dict[str, Any], suite: Path | None, device: str | None) -> list[Plan]:
    if device is not None and device not in TARGETS:
        raise UsageError(f"Unknown device {device!r}: choose cuda or cpu.")
    if suite is None:
        plans = plans_of(settings)
    else:
        from memcalc.catalog.suite import load as load_suite

        if settings:
            given = ", ".join(settings)
            raise UsageError(f"--suite says all there is: write {given} into {suite} instead.")
        plans = load_suite(suite)
    return [replace(plan, target=device or plan.target) for plan in plans]


@guarded
def compare(
    files: Annotated[list[Path], typer.Argument(help="Files that memcalc measure wrote.")],
) -> None:
    """Say how accurate the estimates of measured runs were: median, worst, by what they share."""
    from memcalc.report.accuracy import accuracy

    runs = [run for file in files for run in load(file)]
    with follow() as watcher:
        for number, run in estimate_all(runs, watcher):
            runs[number] = run
    sys.stdout.write(accuracy(runs, width()))
