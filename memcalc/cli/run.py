"""``memcalc run -- COMMAND``."""

from __future__ import annotations

import contextlib
import sys
from functools import partial
from pathlib import Path

from memcalc.cli.command import FILE, argument, exit_with, option, say, verb
from memcalc.cli.output import seen_width
from memcalc.errors import UsageError
from memcalc.files import results

_AS_TYPED = {"ignore_unknown_options": True, "allow_interspersed_args": False}
"""Options behind the command are the command's own."""


@partial(verb, context_settings=_AS_TYPED)
@argument("command", "The command, after --, with its arguments.", nargs=-1, required=True)
@option("--output", "-o", type=FILE, help="Add the result here.")
def command(command: tuple[str, ...], output: Path | None) -> None:
    """Run any command and report its GPU and main memory; its exit code is passed on."""
    from memcalc.measure.watched_command import run
    from memcalc.report.watched_command import render

    if output is not None:
        try:
            results.append(output, None, patience=5)
        except UsageError as error:
            # Whoever wraps a command wants it to run; its result will be elsewhere.
            say(f"warning: {error}")
    outcome = run(list(command))
    if output is not None:
        plan = outcome.measurement.plan
        failure = results.keep(output, results.Run(plan=plan, measurement=outcome.measurement))
        if failure is not None:
            say(f"warning: {failure}")
    # Standard output belongs to the command.
    with contextlib.suppress(OSError):
        sys.stderr.write(render(outcome, seen_width(sys.stderr)))
        sys.stderr.flush()
    raise exit_with(outcome.code)
