"""Shows the progress of runs at a terminal, on standard error."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from memcalc import untrusted_text
from memcalc.accuracy.campaign import Watcher
from memcalc.cli.command import say
from memcalc.files.results import Run
from memcalc.records.measurement import PhaseReading
from memcalc.records.plan import Plan
from memcalc.units import format_mib

if TYPE_CHECKING:
    from rich.text import Text


class Quiet:
    """Says only what went wrong."""

    def begins(self, plan: Plan, number: int, count: int) -> None:
        """A run starts."""

    def said(self, reading: PhaseReading) -> None:
        """A phase of the run has ended."""

    def ended(self, run: Run) -> None:
        """A run has ended."""
        if run.error is not None:
            self.note(f"{run.plan.model} {run.plan.optim}: {run.error}")

    def busy(self, what: str) -> None:
        """Something else takes time now."""

    def note(self, text: str) -> None:
        """Something that a person should know."""
        say(text)


class Shown(Quiet):
    """Keeps one moving line, and leaves a line for each run that has ended."""

    def __init__(self, console: Any, status: Any) -> None:
        self._console = console
        self._status = status
        self._what = ""

    def begins(self, plan: Plan, number: int, count: int) -> None:
        """A run starts."""
        self._what = f"{number + 1}/{count} {plan.model} {plan.optim} {plan.precision}"
        self.busy(f"{self._what}: starting")

    def said(self, reading: PhaseReading) -> None:
        """A phase of the run has ended."""
        level = reading.allocated if reading.allocated is not None else reading.requested
        where = f"step {reading.step} {reading.phase.value}"
        self.busy(f"{self._what}: {where}, {format_mib(level)}")

    def ended(self, run: Run) -> None:
        """A run has ended."""
        from memcalc.report.measured import line

        self.note(f"{self._what}: {line(run)}")

    def busy(self, what: str) -> None:
        """Something else takes time now."""
        self._status.update(_text(what))

    def note(self, text: str) -> None:
        """Something that a person should know."""
        self._console.print(_text(text))


def _text(text: str) -> Text:
    from rich.text import Text

    return Text(untrusted_text.line(text))


@contextmanager
def follow() -> Iterator[Watcher]:
    """An observer of the runs that reports on standard error."""
    if not sys.stderr.isatty():
        yield Quiet()
        return
    from rich.console import Console

    console = Console(stderr=True)
    with console.status("starting") as status:
        yield Shown(console, status)
