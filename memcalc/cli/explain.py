"""``memcalc explain``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from memcalc.cli.command import exit_with, option
from memcalc.cli.options import plans_of, with_plan
from memcalc.cli.output import OUTPUT, deliver_explanation, format_option, progress, put
from memcalc.cli.values import SIZE, counted
from memcalc.errors import UsageError
from memcalc.explanation.explain import Wish, explain_plan
from memcalc.files.extras import require
from memcalc.files.formats import chosen


@with_plan
@option(
    "--under",
    type=SIZE,
    help="Find the cheapest plan that needs no more, such as '15 GiB'. "
    "Default: what the GPU has, where the plan does not fit it.",
)
@option("--depth", type=counted(1), help="Cut modules' paths to so many names.")
@option("--top", type=counted(1), default=12, help="Kinds of storage to list.")
@option("--remedies/--no-remedies", default=True, help="Estimate what would need less.")
@option("--plot", is_flag=True, help="Draw the step's timeline.")
@format_option("explanation")
@OUTPUT
@option("--cache/--no-cache", default=True, help="Keep and reuse traces on disk.")
def command(
    settings: dict[str, Any],
    under: int | None,
    depth: int | None,
    top: int,
    remedies: bool,
    plot: bool,
    format: str | None,
    output: Path | None,
    cache: bool,
) -> None:
    """Show what is alive at the peak, why, and what each remedy really buys."""
    plans = plans_of(settings)
    if len(plans) > 1:
        raise UsageError("One plan at a time is explained: name one optimizer.")
    name = chosen("explanation", format, output)
    if plot:
        require("plotext")
    wish = Wish(depth=depth, remedies=remedies, under=under, use_cache=cache)
    with progress(f"explaining {plans[0].model}"):
        found = explain_plan(plans[0], wish)
    deliver_explanation(found, name, output, top)
    if plot:
        from memcalc.cli.drawing import drawn

        put(drawn(plans[0], use_cache=cache))
    best = found.search.best if found.search is not None else None
    if under is not None and best is None:
        raise exit_with(1)
