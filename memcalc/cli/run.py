"""``memcalc run -- COMMAND``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from memcalc.cli.options import guarded
from memcalc.files import results


@guarded
def command(
    command: Annotated[
        list[str], typer.Argument(help="The command, after --, with its arguments.")
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Add the result here.", show_default=False)
    ] = None,
) -> None:
    """Run any command and say what it held of GPU and main memory; its exit code is passed on."""
    from memcalc.measure.outside import run
    from memcalc.report.outside import render

    if output is not None:
        results.append(output, None)
    outcome = run(command)
    # Standard output belongs to the command.
    sys.stderr.write(render(outcome))
    if output is not None:
        plan = outcome.measurement.plan
        results.append(output, results.Run(plan=plan, measurement=outcome.measurement))
    raise typer.Exit(outcome.code)
