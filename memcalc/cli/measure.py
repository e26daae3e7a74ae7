"""``memcalc measure`` and ``memcalc compare``."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from msgspec.structs import replace

from memcalc.accuracy.campaign import Watcher, estimate_all, measure_all
from memcalc.catalog.plan import disagreement
from memcalc.cli.command import say
from memcalc.cli.declare import verb
from memcalc.cli.options import make_plans, with_plan
from memcalc.cli.output import deliver
from memcalc.cli.progress import Steps, progress
from memcalc.errors import UsageError
from memcalc.files.results import ResultsWriter, Run, keeping, load
from memcalc.measure.runs.runner import Request
from memcalc.records.plan import Plan
from memcalc.records.trace import PhaseReading
from memcalc.units import format_mib
from memcalc.workload import layouts


@with_plan(
    "memcalc measure gpt2 --optim adamw,adam8bit",
    "memcalc measure gpt2 --device cpu --batch 1 --seq 64",
    "memcalc measure --suite runs.toml -o runs.json",
)
def command(
    settings: dict[str, Any],
    suite: Path | None = None,
    device: str | None = None,
    steps: int = 4,
    weights: bool = False,
    timeout: float = 600.0,
    output: Path | None = None,
    more: bool = False,
    estimate: bool = True,
    snapshot: Path | None = None,
) -> None:
    """Train for real, one process per run, beside the estimate."""
    plans = _make_plans(settings, suite, device)
    if snapshot is not None and (len(plans) > 1 or plans[0].target != "cuda"):
        raise UsageError("--snapshot is for a single run on cuda: name one optimizer.")
    requests = [
        Request(
            plan=plan,
            device=plan.target,
            steps=steps,
            timeout=timeout,
            weights=weights,
            snapshot=str(snapshot) if snapshot is not None else None,
        )
        for plan in plans
    ]
    with keeping(output, more=more, say=say) as writer, follow() as watcher:
        finished = _measure_missing(requests, writer, watcher) and _add_estimates(
            writer, watcher, plans if estimate else None
        )
        saved = writer.finish()
    # Why each run failed was said when it did.
    if any(run.measurement is not None for run in writer.runs):
        from memcalc.report import measured

        deliver("table", None, measured.blocks(writer.runs))
    if not finished:
        raise typer.Exit(130)
    if not saved or all(run.measurement is None for run in writer.runs):
        raise typer.Exit(3)


def _measure_missing(requests: list[Request], writer: ResultsWriter, watcher: Watcher) -> bool:
    """Measure the runs that the file does not have yet; return False if interrupted."""
    done = [run.plan for run in writer.runs if run.measurement is not None]
    again = [one for one in requests if one.plan not in done]
    anew = [one.plan for one in again]
    writer.runs[:] = [run for run in writer.runs if run.plan not in anew]
    runs = measure_all(again, watcher)
    left = len(again)
    try:
        for run in runs:
            writer.add(run)
            left -= 1
    except KeyboardInterrupt:
        return False
    finally:
        runs.close()
    if left:
        one = left == 1
        more = "1 more run needs" if one else f"{left} more runs need"
        say(f"{more} a GPU, and {'was' if one else 'were'} not begun.")
    return True


def _add_estimates(writer: ResultsWriter, watcher: Watcher, plans: list[Plan] | None) -> bool:
    """Estimate the runs and write them again; return False if interrupted."""
    if plans is not None:
        try:
            for number, run in estimate_all(writer.runs, watcher, plans):
                writer.runs[number] = run
        except KeyboardInterrupt:
            return False
        finally:
            writer.write()
    return True


def _make_plans(settings: dict[str, Any], suite: Path | None, device: str | None) -> list[Plan]:
    """Return the plans to measure: of the options or of a suite file."""
    if suite is None:
        plans = make_plans(settings)
        if plans[0].engine is not None:
            raise UsageError("Engines are not run: memcalc estimate says what one would reserve.")
    else:
        from memcalc.catalog.plan import load as load_suite

        if settings:
            given = ", ".join(settings)
            raise UsageError(f"--suite holds all settings: write {given} into {suite} instead.")
        plans = load_suite(suite)
    plans = [replace(plan, target=device or plan.target) for plan in plans]
    for plan in plans:
        if plan.model.endswith(".py"):
            raise UsageError(f"{plan.model} is a script: type memcalc run -- python {plan.model}.")
        wrong = disagreement(plan)
        if wrong is not None:
            raise UsageError(wrong)
        layouts.spread(plan)
    return plans


@verb("memcalc compare runs.json", "memcalc compare evidence/*.json")
def compare(files: list[Path]) -> None:
    """Report how accurate the estimates of measured runs were: median, worst, by group."""
    from memcalc.report import accuracy

    runs = [run for file in files for run in load(file)]
    with follow() as watcher:
        for number, run in estimate_all(runs, watcher):
            runs[number] = run
    deliver("table", None, accuracy.blocks(runs))


class _ProgressOfRuns:
    """Keeps the moving line up to date, and leaves a line for each run that has ended."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._what = ""
        self.busy = steps.now
        self.note = steps.note

    def begin(self, plan: Plan, number: int, count: int) -> None:
        """Show that a run starts."""
        self._what = f"{plan.model} {plan.optim} {plan.precision}"
        self._steps.at(number, count)
        self.busy(f"{self._what}: starting")

    def see_phase(self, reading: PhaseReading) -> None:
        """Show the phase that has ended, and its level in MiB."""
        level = reading.allocated if reading.allocated is not None else reading.requested
        where = f"step {reading.step} {reading.phase.value}"
        known = "" if level is None else f", {format_mib(level)}"
        self.busy(f"{self._what}: {where}{known}")

    def end(self, run: Run) -> None:
        """Print the outcome of a run that has ended."""
        from memcalc.report.measured import line

        if run.error is not None:
            self.note(f"{run.plan.model} {run.plan.optim}: {run.error}")
        else:
            self._steps.row(f"{self._what}: {line(run)}")


@contextmanager
def follow() -> Iterator[Watcher]:
    """Yield a watcher that shows the progress of runs on stderr."""
    with progress("starting") as steps:
        yield _ProgressOfRuns(steps)
