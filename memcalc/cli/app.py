"""The application: its verbs, in the order help shows them."""

from __future__ import annotations

from typing import Annotated

import typer

from memcalc.cli import (
    check,
    doctor,
    estimate,
    explain,
    fit,
    init,
    lists,
    measure,
    report,
    run,
    show,
)
from memcalc.version import __version__

app = typer.Typer(
    name="memcalc",
    help="What will training this model cost in GPU memory?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"memcalc {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """What will training this model cost in GPU memory?"""


app.command("estimate")(estimate.command)
app.command("fit")(fit.command)
app.command("explain")(explain.command)
app.command("report")(report.command)
app.command("measure")(measure.command)
app.command(
    "run", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}
)(run.command)
app.command("compare")(measure.compare)
app.command("check")(check.command)
app.command("init")(init.command)
app.command("show")(show.command)
app.command("doctor")(doctor.command)
app.add_typer(lists.app, name="list")
