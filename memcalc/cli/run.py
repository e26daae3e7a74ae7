"""``memcalc run -- COMMAND``."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from memcalc.cli.command import FILE, argument, exit_with, option, verb
from memcalc.files import results

_AS_TYPED = {"ignore_unknown_options": True, "allow_interspersed_args": False}
"""Options behind the command are the command's own."""


@partial(verb, context_settings=_AS_TYPED)
@argument("command", "The command, after --, with its arguments.", nargs=-1, required=True)
@option("--output", "-o", type=FILE, help="Add the result here.")
def command(command: tuple[str, ...], output: Path | None) -> None:
    """Run any command and say what it held of GPU and main memory; its exit code is passed on."""
    from memcalc.measure.outside import run
    from memcalc.report.outside import render

    if output is not None:
        results.append(output, None)
    outcome = run(list(command))
    # Standard output belongs to the command.
    sys.stderr.write(render(outcome))
    if output is not None:
        plan = outcome.measurement.plan
        results.append(output, results.Run(plan=plan, measurement=outcome.measurement))
    raise exit_with(outcome.code)
