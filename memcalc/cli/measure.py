"""``memcalc measure`` and ``memcalc compare``."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from memcalc.api import answers
from memcalc.catalog import gpus
from memcalc.cli.estimate import progress
from memcalc.cli.options import guarded, plans_of, say, with_plan
from memcalc.errors import MemcalcError, UsageError
from memcalc.measure.parent import Request, measure
from memcalc.records import Measurement, Plan, Prediction
from memcalc.results import Run, load, save


@with_plan
def command(
    settings: dict[str, Any],
    suite: Annotated[
        Path | None, typer.Option(help="Suite file with many runs.", show_default=False)
    ] = None,
    device: Annotated[str, typer.Option(help="cuda or cpu.")] = "cuda",
    steps: Annotated[int, typer.Option(help="Optimizer steps; the last is measured.")] = 4,
    timeout: Annotated[float, typer.Option(help="Seconds for one run.")] = 600.0,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Keep results here.", show_default=False)
    ] = None,
    skip_done: Annotated[
        bool, typer.Option("--skip-done", help="Skip runs that the output file has already.")
    ] = False,
    snapshot: Annotated[
        Path | None, typer.Option(help="Dump PyTorch's memory snapshot.", show_default=False)
    ] = None,
) -> None:
    """Train for real, one child process a run, and put the estimate beside it."""
    if device not in ("cuda", "cpu"):
        raise UsageError(f"Unknown device {device!r}: choose cuda or cpu.")
    if steps < 2:
        raise UsageError("--steps is at least 2: the first step differs from all others.")
    plans = _plans(settings, suite)
    runs = load(output) if skip_done and output is not None and output.exists() else []
    done = [run.plan for run in runs]
    if output is not None:
        save(output, runs)
    for plan in plans:
        if plan in done:
            continue
        request = Request(
            plan=plan,
            device=device,
            steps=steps,
            timeout=timeout,
            snapshot=str(snapshot) if snapshot is not None else None,
        )
        runs.append(_run(request))
        if output is not None:
            save(output, runs)
    from memcalc.report import measured

    sys.stdout.write(measured.render(runs))
    if all(run.measurement is None for run in runs):
        raise typer.Exit(3)


def _plans(settings: dict[str, Any], suite: Path | None) -> list[Plan]:
    if suite is None:
        return plans_of(settings)
    from memcalc.suite import load as load_suite

    return load_suite(suite)


def _run(request: Request) -> Run:
    plan = request.plan
    with progress(f"measuring {plan.model} with {plan.optim}"):
        try:
            found = measure(request, lambda reading: None)
        except MemcalcError as error:
            say(f"{plan.model} {plan.optim}: {error}")
            return Run(plan=plan, error=str(error))
    return Run(plan=plan, prediction=_prediction(plan, found), measurement=found)


def _prediction(plan: Plan, measured: Measurement) -> Prediction | None:
    """The estimate for the very GPU and PyTorch that were measured, where memcalc knows the GPU."""
    if measured.device == "cpu":
        return None
    version = measured.versions["torch"].split("+")[0]
    try:
        gpu = plan.gpu or gpus.find(measured.device).name
    except UsageError as error:
        say(f"no estimate beside this: {error}")
        return None
    asked = dataclasses.replace(plan, gpu=gpu, torch=version)
    answer = next(iter(answers([asked])))
    return answer if isinstance(answer, Prediction) and answer.method == "trace" else None


@guarded
def compare(
    files: Annotated[list[Path], typer.Argument(help="Files that memcalc measure wrote.")],
) -> None:
    """Say how accurate the estimates of measured runs were: median, worst, by what they share."""
    from memcalc.report import measured

    runs = [run for file in files for run in load(file)]
    sys.stdout.write(measured.accuracy(runs))
