"""``memcalc fit``."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from memcalc.cli.options import plans_of, with_plan
from memcalc.cli.output import progress
from memcalc.errors import UsageError
from memcalc.files import artifact
from memcalc.units import parse_bytes

_WIDEST = 120
_AXES = ("batch", "seq")


@with_plan
def command(
    settings: dict[str, Any],
    memory: Annotated[
        str | None,
        typer.Option(
            help="Fit this much instead, such as '10 GiB'; with --gpu, of that GPU.",
            show_default=False,
        ),
    ] = None,
    find: Annotated[
        str | None,
        typer.Option(
            help="What to find the largest of: batch, seq or batch,seq. Default: both, "
            "unless --grid, --gpus or --settings ask for something else.",
            show_default=False,
        ),
    ] = None,
    grid: Annotated[bool, typer.Option("--grid", help="Show batches by sequences.")] = False,
    gpus: Annotated[bool, typer.Option("--gpus", help="Show which GPUs fit the plan.")] = False,
    settings_too: Annotated[
        bool, typer.Option("--settings", help="Show which changes to the plan fit, and their cost.")
    ] = False,
    format: Annotated[
        str | None,
        typer.Option("--format", "-f", help="table, json or markdown.", show_default=False),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Write here; format by extension.", show_default=False),
    ] = None,
    cache: Annotated[bool, typer.Option(help="Keep and reuse what is learnt on disk.")] = True,
) -> None:
    """Find the largest batch and sequence that fit a GPU, and which GPUs and settings fit."""
    from memcalc import report
    from memcalc.fitting.ask import Question, answer
    from memcalc.report import fitted

    plans = plans_of(settings)
    if len(plans) > 1:
        raise UsageError("memcalc fit answers for one optimizer: name one with --optim.")
    name = format or (report.format_for(output) if output is not None else "table")
    if name not in fitted.FORMATS:
        raise UsageError(f"memcalc fit has no {name}: choose {', '.join(fitted.FORMATS)}.")
    axes = _axes(find, otherwise=not (grid or gpus or settings_too))
    question = Question(
        memory=parse_bytes(memory) if memory is not None else None,
        batch="batch" in axes,
        seq="seq" in axes,
        grid=grid,
        gpus=gpus,
        settings=settings_too,
    )
    with progress(f"fitting {plans[0].model}"):
        found = answer(plans[0], question, use_cache=cache)
    color = sys.stdout.isatty() and output is None
    width = min(shutil.get_terminal_size((100, 24)).columns, _WIDEST)
    text = fitted.render(found, name, color=color, width=width)
    if output is not None:
        artifact.write(output, text)
    else:
        sys.stdout.write(text)


def _axes(find: str | None, *, otherwise: bool) -> tuple[str, ...]:
    """What ``--find`` names; left out, it stands for both axes where nothing else is asked."""
    if find is None:
        return _AXES if otherwise else ()
    named = tuple(part.strip() for part in find.split(",") if part.strip())
    if not named or set(named) - set(_AXES):
        raise UsageError(f"--find {find!r} is not understood: write batch, seq or batch,seq.")
    return named
