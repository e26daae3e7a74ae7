"""``memcalc watch -- COMMAND``."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer

from memcalc.cli.command import say
from memcalc.cli.declare import verb
from memcalc.cli.output import width
from memcalc.cli.progress import EVERY

_REDRAWN = 4
"""Drawings of the view in a second."""


@verb(
    "memcalc watch -- python train.py",
    "memcalc watch -- torchrun --nproc-per-node 2 train.py",
    starts_command=True,
)
def command(words: list[str]) -> None:
    """Run any command and show its GPU memory live, by process and by step.

    It draws the allocated bytes of Python processes that use PyTorch over time. The command's exit
    code is passed on; its result is the one of memcalc run.
    """
    from memcalc.measure.followed import follow, read
    from memcalc.measure.watched_command import CommandNow, run
    from memcalc.report.measured import render
    from memcalc.report.watched import view

    last: list[str] = []
    with follow(os.environ) as (environment, folder), _open_screen() as (draw, show):

        def seen(now: CommandNow) -> None:
            last[:] = view(now, read(folder), width())
            draw(last)

        outcome = run(words, environment=environment, seen=seen, show=show)
    # Standard output belongs to the command.
    for line in last:
        say(f"memcalc: {line}")
    sys.stderr.write(render(outcome, width() if sys.stderr.isatty() else None))
    raise typer.Exit(outcome.code)


@contextmanager
def _open_screen() -> Iterator[tuple[Callable[[list[str]], None], Callable[[str], None] | None]]:
    """Yield functions that redraw the live view, and that print a line above it (or None)."""
    if not sys.stderr.isatty():
        yield _log_sometimes(), None
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(stderr=True)
    with Live(console=console, refresh_per_second=_REDRAWN, transient=True) as live:
        yield (
            lambda lines: live.update(Text("\n".join(lines))),
            lambda line: console.print(Text.from_ansi(line)),
        )


def _log_sometimes() -> Callable[[list[str]], None]:
    """Return a function that logs the view, at most every 30 seconds."""
    import time

    told = time.monotonic()

    def draw(lines: list[str]) -> None:
        nonlocal told
        if time.monotonic() - told > EVERY:
            told = time.monotonic()
            for line in lines:
                say(f"memcalc: {line}")

    return draw
