"""``memcalc suggest``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from memcalc.catalog import gpus
from memcalc.cli.command import say
from memcalc.cli.options import make_plan, with_plan
from memcalc.cli.output import Output, put
from memcalc.cli.progress import progress
from memcalc.cli.recipes import find_recipe, format_plan, recipe_output
from memcalc.errors import UsageError
from memcalc.records.plan import Plan

if TYPE_CHECKING:
    from memcalc.advice.suggest.records import Suggestions
    from memcalc.advice.suggest.speed_and_price import Prices


@with_plan(
    "memcalc suggest Qwen/Qwen2.5-1.5B --gpu 4090",
    "memcalc suggest gpt2 --gpu t4 --batch 64 --as trainer",
    "memcalc suggest gpt2 --gpu t4 --tokens 1e9 --price 0.35",
    "memcalc suggest gpt2 --gpu t4 -o train.py",
    "memcalc suggest axolotl.yaml --gpu 4090 -o smaller.yaml",
)
def command(
    settings: dict[str, Any],
    output: Output,
    program: str | None = None,
    tokens: float | None = None,
    price: str | None = None,
    no_cache: bool = False,
) -> None:
    """Find the best ways to train a model on a GPU, each one really estimated.

    Without --gpu: the smallest card for each way, among those that clouds rent, those that --price
    names, or all (-v). A step has --batch times --grad-accum samples; what is suggested keeps their
    number.
    """
    from memcalc.report import suggested

    plan = make_plan(settings, "memcalc suggest answers for")
    file = output.file
    recipe = recipe_output(settings, file)
    script = file if file is not None and file.suffix == ".py" and program is None else None
    if plan.gpu is None and (program is not None or recipe is not None):
        word = "--as writes settings" if program else "A recipe is written"
        raise UsageError(f"{word} for one GPU: name it with --gpu.")
    out = output.choose_format("suggestions", beside=bool(recipe or script))
    known = _read_prices(price, tokens, plan)
    among = gpus.table() if output.verbose else None
    if known is not None and known.by_gpu:
        among = tuple(gpus.find(gpu) for gpu in known.by_gpu)
    found, stopped = _find_ways(plan, among, use_cache=not no_cache)
    kept = find_recipe(settings)
    # A recipe goes on training what it trains, where that fits.
    nearest = found.nearest if kept is not None else next(iter(found.fitting), None)
    best = nearest.figures if nearest is not None else None
    if program is not None and best is not None:
        _write_snippet(best.plan, program, kept, file)
        return
    out.deliver(found, work=suggested.Work(tokens=tokens, prices=known))
    if stopped:
        raise KeyboardInterrupt
    if best is None:
        raise typer.Exit(1)
    if recipe is not None:
        put(format_plan(best.plan, recipe), file)
    if script is not None:
        write_scripts(found, script)


def _read_prices(price: str | None, tokens: float | None, plan: Plan) -> Prices | None:
    """Parse ``--price``; return None without it; raise UsageError without ``--tokens``."""
    from memcalc.advice.suggest import speed_and_price

    if price is None:
        return None
    if tokens is None:
        raise UsageError("A price needs a number of tokens: add --tokens 1e9.")
    known = speed_and_price.read(price)
    if plan.gpu is not None:
        known.price(gpus.find(plan.gpu).name)
    return known


def _write_snippet(plan: Plan, program: str, recipe: str | None, output: Path | None) -> None:
    """Write a plan as settings of a program, or as its recipe file with changes."""
    from memcalc.advice.suggest.snippets import is_written_for, snippet

    if recipe is not None and is_written_for(program, recipe):
        put(format_plan(plan, recipe), output)
    else:
        put(snippet(plan, program), output)


def write_scripts(found: Suggestions, output: Path) -> None:
    """Write a training script for each way that fits, or say why a way has no script."""
    for one in found.fitting:
        assert one.figures is not None
        lean = " lean" if found.gpu is None and one.remedies else ""
        key = f"{one.way.key}{lean}".replace(" ", "-")
        try:
            put(format_plan(one.figures.plan, None), output.with_name(f"{output.stem}-{key}.py"))
        except UsageError as error:
            say(f"no script for {one.way.title}: {error}")


def _find_ways(
    plan: Plan, among: Sequence[gpus.Gpu] | None, *, use_cache: bool
) -> tuple[Suggestions, bool]:
    """Find ways to train on the plan's GPU, or GPUs; True if Ctrl-C cut it short."""
    from memcalc.advice.suggest.gpus import cards
    from memcalc.advice.suggest.strategies import ways
    from memcalc.advice.suggest.suggest import suggest_plan
    from memcalc.report.suggested import row_words

    count, what = len(list(ways(plan))), "ways to"
    find = partial(suggest_plan, plan, use_cache=use_cache)
    if plan.gpu is None:
        count, what = 2 * count, "cards that"
        find = partial(cards, plan, among=among, use_cache=use_cache)
    with progress(f"finding {what} train {plan.model}") as steps:
        return steps.answer_until_stopped(lambda seen: find(seen=seen), row_words, count)
