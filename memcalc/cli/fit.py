"""``memcalc fit``."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec.structs import replace

from memcalc.cli.command import SIZE, TEXT, option
from memcalc.cli.options import plan_of, with_plan
from memcalc.cli.output import NoCache, Output, Verbose, chosen, deliver_answer, format_option
from memcalc.cli.progress import progress
from memcalc.cli.recipes import recipe_output, write_recipe
from memcalc.errors import UsageError

_AXES = ("batch", "seq")


_Memory = Annotated[
    int | None,
    option(
        "--memory", "Fit this much instead, such as '10 GiB'; with --gpu, of that GPU.", value=SIZE
    ),
]
_Find = Annotated[
    str | None,
    option(
        "--find",
        "What to find the largest of: batch, seq or batch,seq. Default: both, "
        "unless --grid, --gpus, --settings or --count ask for something else.",
        value=TEXT,
    ),
]
_Gpus = Annotated[
    bool,
    option("--gpus", "Show which GPUs fit the plan, of those that clouds rent (-v: of all)."),
]
_SettingsToo = Annotated[
    bool, option("--settings", "Show which changes to the plan fit, and their cost.")
]
_Count = Annotated[bool, option("--count", "Show how many of this GPU the plan needs, by layout.")]


@with_plan(
    "memcalc fit gpt2 --gpu t4",
    "memcalc fit gpt2 --gpus --batch 16",
    "memcalc fit gpt2 --gpu t4 --grid",
)
def command(
    settings: dict[str, Any],
    memory: _Memory = None,
    find: _Find = None,
    grid: Annotated[bool, option("--grid", "Show batches by sequences.")] = False,
    gpus: _Gpus = False,
    settings_too: _SettingsToo = False,
    count: _Count = False,
    format: Annotated[str | None, format_option("fit")] = None,
    output: Output = None,
    verbose: Verbose = False,
    no_cache: NoCache = False,
) -> None:
    """Find the largest batch and sequence that fit a GPU, and which GPUs and settings fit."""
    from memcalc.advice.fit.fit import answer
    from memcalc.catalog.gpus import table
    from memcalc.report import fitted

    plan = plan_of(settings, "memcalc fit answers for")
    recipe = recipe_output(settings, output)
    name = chosen("fit", format, None if recipe else output)
    more = {"grid": grid, "gpus": gpus, "settings": settings_too, "devices": count}
    wanted = [thing for thing, asked in more.items() if asked]
    wanted += _axes(find, otherwise=not wanted)
    among = table() if verbose else None
    with progress(f"fitting {plan.model}") as steps:
        found, stopped = steps.answer_until_stopped(
            lambda seen: answer(
                plan, wanted, memory=memory, among=among, use_cache=not no_cache, seen=seen
            ),
            fitted.row_words,
        )
    deliver_answer(found, name, None if recipe else output, verbose=verbose)
    if stopped:
        raise KeyboardInterrupt
    if recipe is not None:
        largest = next((one for one in found.limits if one.best is not None), None)
        if largest is None or largest.best is None:
            raise UsageError("No batch or sequence fits: nothing is written.")
        size = {largest.axis: largest.value(largest.best)}
        write_recipe(recipe, replace(plan, **size), output)


def _axes(find: str | None, *, otherwise: bool) -> tuple[str, ...]:
    """What ``--find`` names; left out, it stands for both axes where nothing else is asked."""
    if find is None:
        return _AXES if otherwise else ()
    named = tuple(part.strip() for part in find.split(",") if part.strip())
    if not named or set(named) - set(_AXES):
        raise UsageError(f"--find {find!r} is not understood: write batch, seq or batch,seq.")
    return named
