"""``memcalc fit``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from memcalc.cli.command import no_cache, option
from memcalc.cli.options import plan_of, with_plan
from memcalc.cli.output import OUTPUT, VERBOSE, deliver, format_option, in_full
from memcalc.cli.progress import progress
from memcalc.cli.values import SIZE
from memcalc.errors import UsageError
from memcalc.files.formats import chosen

_AXES = ("batch", "seq")


@with_plan
@option(
    "--memory", type=SIZE, help="Fit this much instead, such as '10 GiB'; with --gpu, of that GPU."
)
@option(
    "--find",
    help="What to find the largest of: batch, seq or batch,seq. Default: both, "
    "unless --grid, --gpus, --settings or --count ask for something else.",
)
@option("--grid", is_flag=True, help="Show batches by sequences.")
@option("--gpus", is_flag=True, help="Show which GPUs fit the plan.")
@option(
    "--settings",
    "settings_too",
    is_flag=True,
    help="Show which changes to the plan fit, and their cost.",
)
@option("--count", is_flag=True, help="Show how many of this GPU the plan needs, by layout.")
@format_option("fit")
@OUTPUT
@VERBOSE
@no_cache("what is learnt")
def command(
    settings: dict[str, Any],
    memory: int | None,
    find: str | None,
    grid: bool,
    gpus: bool,
    settings_too: bool,
    count: bool,
    format: str | None,
    output: Path | None,
    verbose: bool,
    use_cache: bool,
) -> None:
    """Find the largest batch and sequence that fit a GPU, and which GPUs and settings fit."""
    from memcalc.advice.fit.fit import Question, answer
    from memcalc.report import fitted

    plan = plan_of(settings, "memcalc fit answers for")
    name = chosen("fit", format, output)
    axes = _axes(find, otherwise=not (grid or gpus or settings_too or count))
    question = Question(
        memory=memory,
        batch="batch" in axes,
        seq="seq" in axes,
        grid=grid,
        gpus=gpus,
        settings=settings_too,
        devices=count,
    )
    with progress(f"fitting {plan.model}"):
        found = answer(plan, question, use_cache=use_cache)
    blocks = fitted.blocks(found, verbose=in_full(verbose, output, name))
    deliver(name, output, blocks, json=lambda: fitted.as_json(found))


def _axes(find: str | None, *, otherwise: bool) -> tuple[str, ...]:
    """What ``--find`` names; left out, it stands for both axes where nothing else is asked."""
    if find is None:
        return _AXES if otherwise else ()
    named = tuple(part.strip() for part in find.split(",") if part.strip())
    if not named or set(named) - set(_AXES):
        raise UsageError(f"--find {find!r} is not understood: write batch, seq or batch,seq.")
    return named
