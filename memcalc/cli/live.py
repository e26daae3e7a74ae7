"""Shows the progress of runs at a terminal, on standard error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from memcalc.accuracy.campaign import Watcher
from memcalc.cli.progress import Steps, progress
from memcalc.files.results import Run
from memcalc.records.measurement import PhaseReading
from memcalc.records.plan import Plan
from memcalc.units import format_mib


class _Followed:
    """Keeps the moving line up to date, and leaves a line for each run that has ended."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._what = ""
        self.busy = steps.now
        self.note = steps.note

    def begins(self, plan: Plan, number: int, count: int) -> None:
        """A run starts."""
        self._what = f"{plan.model} {plan.optim} {plan.precision}"
        self._steps.at(number, count)
        self.busy(f"{self._what}: starting")

    def said(self, reading: PhaseReading) -> None:
        """A phase of the run has ended."""
        level = reading.allocated if reading.allocated is not None else reading.requested
        where = f"step {reading.step} {reading.phase.value}"
        self.busy(f"{self._what}: {where}, {format_mib(level)}")

    def ended(self, run: Run) -> None:
        """A run has ended."""
        from memcalc.report.measured import line

        if run.error is not None:
            self.note(f"{run.plan.model} {run.plan.optim}: {run.error}")
        else:
            self._steps.row(f"{self._what}: {line(run)}")


@contextmanager
def follow() -> Iterator[Watcher]:
    """An observer of the runs that reports on standard error."""
    with progress("starting") as steps:
        yield _Followed(steps)
