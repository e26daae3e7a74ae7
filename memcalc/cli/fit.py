"""``memcalc fit``."""

from typing import Any

from msgspec.structs import replace

from memcalc.cli.options import make_plan, with_plan
from memcalc.cli.output import Output, put
from memcalc.cli.progress import progress
from memcalc.cli.recipes import format_plan, recipe_output
from memcalc.errors import UsageError

_AXES = ("batch", "seq")


@with_plan(
    "memcalc fit gpt2 --gpu t4",
    "memcalc fit gpt2 --gpus --batch 16",
    "memcalc fit gpt2 --gpu t4 --grid",
)
def command(
    settings: dict[str, Any],
    output: Output,
    memory: int | None = None,
    find: str | None = None,
    grid: bool = False,
    gpus: bool = False,
    settings_too: bool = False,
    count: bool = False,
    no_cache: bool = False,
) -> None:
    """Find the largest batch and sequence that fit a GPU, and which GPUs and settings fit."""
    from memcalc.advice.fit.fit import answer
    from memcalc.catalog.gpus import find as find_gpu
    from memcalc.catalog.gpus import table
    from memcalc.report import fitted

    among = table() if output.verbose else None
    if isinstance(settings.get("gpu"), list):
        # Several GPUs are the rows of --gpus, in place of those that clouds rent.
        gpus, among = True, tuple(map(find_gpu, settings.pop("gpu")))
    plan = make_plan(settings, "memcalc fit answers for")
    recipe = recipe_output(settings, output.file)
    out = output.choose_format("fit", beside=recipe is not None)
    more = {"grid": grid, "gpus": gpus, "settings": settings_too, "devices": count}
    wanted = [thing for thing, asked in more.items() if asked]
    wanted += _parse_axes(find, otherwise=not wanted)
    with progress(f"fitting {plan.model}") as steps:
        found, stopped = steps.answer_until_stopped(
            lambda seen: answer(
                plan, wanted, memory=memory, among=among, use_cache=not no_cache, seen=seen
            ),
            fitted.row_words,
        )
    out.deliver(found)
    if stopped:
        raise KeyboardInterrupt
    if recipe is not None:
        largest = next((one for one in found.limits if one.best is not None), None)
        if largest is None or largest.best is None:
            raise UsageError("No batch or sequence fits: nothing is written.")
        size = {largest.axis: largest.value(largest.best)}
        put(format_plan(replace(plan, **size), recipe), output.file)


def _parse_axes(find: str | None, *, otherwise: bool) -> tuple[str, ...]:
    """Return the axes ``--find`` names; without it, both if ``otherwise`` is true."""
    if find is None:
        return _AXES if otherwise else ()
    named = tuple(part.strip() for part in find.split(",") if part.strip())
    if not named or set(named) - set(_AXES):
        raise UsageError(f"--find {find!r} is not understood: write batch, seq or batch,seq.")
    return named
