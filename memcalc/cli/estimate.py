"""``memcalc estimate``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from memcalc import artifact, report
from memcalc.api import answers
from memcalc.cli.options import plans_of, say, with_plan
from memcalc.errors import MemcalcError
from memcalc.records import Prediction

Format = Annotated[
    str | None,
    typer.Option("--format", "-f", help="table, json, markdown or csv.", show_default=False),
]
Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="Write here; format by extension.", show_default=False),
]


@with_plan
def command(
    settings: dict[str, Any],
    method: Annotated[
        str, typer.Option(help="trace (run the real code on a simulated GPU) or analytic.")
    ] = "trace",
    format: Format = None,
    output: Output = None,
    cache: Annotated[bool, typer.Option(help="Keep and reuse answers on disk.")] = True,
) -> None:
    """Predict what one training step costs, by component and by phase."""
    plans = plans_of(settings)
    found: list[Prediction] = []
    failed: list[MemcalcError] = []
    with progress(f"estimating {plans[0].model}"):
        for plan, answer in zip(plans, answers(plans, method=method, use_cache=cache), strict=True):
            if isinstance(answer, Prediction):
                found.append(answer)
            else:
                failed.append(answer)
                if len(plans) > 1:
                    say(f"{plan.optim}: {answer}")
    if not found:
        raise failed[0]
    deliver(found, format, output)


def deliver(found: list[Prediction], format: str | None, output: Path | None) -> None:
    """Print or write predictions."""
    if output is not None:
        name = format or report.format_for(output)
        artifact.write(output, report.render(found, name))
        return
    name = format or "table"
    if name == "table":
        from memcalc.report import table

        color = sys.stdout.isatty()
        sys.stdout.write(table.render(found, color=color))
    else:
        sys.stdout.write(report.render(found, name))


@contextmanager
def progress(what: str) -> Iterator[None]:
    """A spinner on stderr; nothing when that is not a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(what):
        yield
