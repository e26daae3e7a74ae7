"""``memcalc run -- COMMAND``."""

import contextlib
import sys
from pathlib import Path

import typer

from memcalc.cli.command import say
from memcalc.cli.declare import verb
from memcalc.cli.output import terminal_width
from memcalc.errors import UsageError
from memcalc.files import results


@verb(
    "memcalc run -- python train.py",
    "memcalc run -o run.json -- torchrun --nproc-per-node 2 train.py",
    "memcalc run -- bash -c 'python a.py; python b.py'",
    starts_command=True,
)
def command(words: list[str], output: Path | None = None) -> None:
    """Run any command and report its GPU and main memory; its exit code is passed on."""
    from memcalc.measure.watched_command import run
    from memcalc.report.measured import render

    if output is not None:
        try:
            results.append(output, None, patience=5)
        except UsageError as error:
            # Whoever wraps a command wants it to run; its result will be elsewhere.
            say(f"warning: {error}")
    outcome = run(words)
    if output is not None:
        plan = outcome.measurement.plan
        failure = results.keep(output, results.Run(plan=plan, measurement=outcome.measurement))
        if failure is not None:
            say(f"warning: {failure}")
    # Standard output belongs to the command.
    with contextlib.suppress(OSError):
        sys.stderr.write(render(outcome, terminal_width(sys.stderr)))
        sys.stderr.flush()
    raise typer.Exit(outcome.code)
