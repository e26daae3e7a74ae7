"""Progress on standard error: a live line at a terminal, occasional lines in a log."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from memcalc import untrusted_text
from memcalc.cli.command import say
from memcalc.records.progress import Progress as Fetching
from memcalc.records.progress import listening

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

T = TypeVar("T")
EVERY = 30.0
"""Seconds between lines where standard error is no terminal."""


class Steps:
    """The progress of a command; this base class shows nothing."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.done = 0
        self.total: int | None = None

    def at(self, done: int, total: int | None = None) -> None:
        """Record how many answers of how many are known."""
        self.done, self.total = done, total

    @property
    def known(self) -> str:
        """The text ``, 2 of 5`` for the end of a progress line; empty without a total."""
        return f", {self.done} of {self.total}" if self.total else ""

    def now(self, what: str) -> None:
        """Set the text of the current work."""
        self.what = what

    def row(self, text: str) -> None:
        """Show a part of the answer before all is known; here a no-op."""

    def note(self, text: str) -> None:
        """Print a note on stderr."""
        say(text)

    def answer_until_stopped(
        self,
        find: Callable[[Callable[[T], None]], T],
        rows: Callable[[T], Iterable[str]],
        total: int | None = None,
    ) -> tuple[T, bool]:
        """Run ``find``; return its answer, or on Ctrl-C the last partial one and True.

        ``find`` passes each answer so far to the function it is given; every new row of it, of
        ``total`` at most, is shown.

        Raises:
            KeyboardInterrupt: nothing was known yet.
        """
        known: list[T] = []
        shown: set[str] = set()

        def see(so_far: T) -> None:
            known[:] = [so_far]
            current = list(rows(so_far))
            for row in current:
                if row not in shown:
                    shown.add(row)
                    self.row(row)
            self.at(len(current), total)

        try:
            return find(see), False
        except KeyboardInterrupt:
            if not known:
                raise
            return known[0], True


class _Moving(Steps):
    """A moving line at a terminal, and rows above it."""

    def __init__(self, what: str, shown: Progress, task: TaskID) -> None:
        super().__init__(what)
        self._shown, self._task = shown, task
        self._fetched: TaskID | None = None

    def at(self, done: int, total: int | None = None) -> None:
        super().at(done, total)
        self._shown.update(self._task, known=self.known)

    def now(self, what: str) -> None:
        self._shown.update(self._task, description=untrusted_text.line(what))

    def row(self, text: str, style: str = "dim") -> None:
        from rich.text import Text

        self._shown.console.print(Text(untrusted_text.line(text), style=style))

    def note(self, text: str) -> None:
        self.row(text, style="")

    def fetching(self, seen: Fetching) -> None:
        """Show a download: its name and size first, without a fraction, then its progress."""
        if seen.fraction is None:
            self.row(seen.text)
            return
        if self._fetched is None:
            self._fetched = self._shown.add_task("", known="")
        told = untrusted_text.line(seen.text)
        self._shown.update(self._fetched, description=told, known=f", {seen.fraction:.0%}")
        if seen.fraction == 1:
            self._shown.remove_task(self._fetched)
            self._fetched = None


class _Logged(Steps):
    """A line in a log every 30 seconds."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self._begun = time.monotonic()
        self._row = ""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._print_regularly, daemon=True)
        self._thread.start()

    def row(self, text: str) -> None:
        """Keep the newest part of the answer for the next line."""
        self._row = f"; {text}"

    def end(self) -> None:
        """Stop the thread that prints."""
        self._over.set()
        self._thread.join()

    def fetching(self, seen: Fetching) -> None:
        """Print the name and size of a download, and not its progress."""
        if seen.fraction is None:
            say(f"memcalc: {seen.text}")

    def _print_regularly(self) -> None:
        while not self._over.wait(EVERY):
            seconds = f"{time.monotonic() - self._begun:.0f} s"
            say(f"memcalc: {self.what}: {seconds}{self.known}{self._row}")


@contextmanager
def progress(what: str) -> Iterator[Steps]:
    """Show what is being done, such as ``estimating gpt2``, while the context lasts."""
    if not sys.stderr.isatty():
        logged = _Logged(what)
        try:
            with listening(logged.fetching):
                yield logged
        finally:
            logged.end()
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn

    line = "{task.description}: {task.elapsed:.0f} s{task.fields[known]}"
    counted = Progress(
        SpinnerColumn(),
        TextColumn(line, markup=False),
        console=Console(stderr=True),
        transient=True,
    )
    with counted as shown:
        steps = _Moving(what, shown, shown.add_task(untrusted_text.line(what), known=""))
        with listening(steps.fetching):
            yield steps
