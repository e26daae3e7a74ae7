"""``memcalc suggest``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from memcalc.catalog import gpus
from memcalc.cli.options import plan_of, with_plan
from memcalc.cli.output import chosen, deliver_answer, put
from memcalc.cli.progress import progress
from memcalc.cli.recipes import recipe_of, recipe_output, write_recipe
from memcalc.errors import UsageError
from memcalc.records.plan import Plan

if TYPE_CHECKING:
    from memcalc.advice.suggest.records import Suggestions
    from memcalc.report.suggested import Work


@with_plan(
    "memcalc suggest Qwen/Qwen2.5-1.5B --gpu 4090",
    "memcalc suggest gpt2 --gpu t4 --batch 64 --as trainer",
    "memcalc suggest gpt2 --gpu t4 --tokens 1e9 --price 0.35",
    "memcalc suggest axolotl.yaml --gpu 4090 -o smaller.yaml",
)
def command(
    settings: dict[str, Any],
    program: str | None = None,
    tokens: float | None = None,
    price: str | None = None,
    format: str | None = None,
    output: Path | None = None,
    verbose: bool = False,
    no_cache: bool = False,
) -> None:
    """Find the best ways to train a model on a GPU, each one really estimated.

    Without --gpu: the smallest card for each way, among those that clouds rent, those that --price
    names, or all (-v). A step has --batch times --grad-accum samples; what is suggested keeps their
    number.
    """
    from memcalc.advice.suggest import speed_and_price
    from memcalc.report.suggested import Work

    plan = plan_of(settings, "memcalc suggest answers for")
    if price is not None and tokens is None:
        raise UsageError("A price needs a number of tokens: add --tokens 1e9.")
    recipe = recipe_output(settings, output)
    name = chosen("suggestions", format, None if recipe else output)
    known = speed_and_price.read(price) if price is not None else None
    work = Work(tokens=tokens, prices=known)
    if plan.gpu is None:
        if program is not None or recipe is not None:
            word = "--as writes settings" if program else "A recipe is written"
            raise UsageError(f"{word} for one GPU: name it with --gpu.")
        _find_cards(plan, work, name, output, verbose=verbose, use_cache=not no_cache)
        return
    if known is not None:
        known.of(gpus.find(plan.gpu).name)
    found, stopped = _find_ways(plan, use_cache=not no_cache)
    best = found.fitting[0].figures if found.fitting else None
    if program is not None and best is not None:
        _write_settings(best.plan, program, recipe_of(settings), output)
        return
    deliver_answer(found, name, None if recipe else output, verbose=verbose, work=work)
    if stopped:
        raise KeyboardInterrupt
    if recipe is not None and best is not None:
        write_recipe(recipe, best.plan, output)
    if not found.fitting:
        raise typer.Exit(1)


def _find_ways(plan: Plan, *, use_cache: bool) -> tuple[Suggestions, bool]:
    from memcalc.advice.suggest.strategies import ways
    from memcalc.advice.suggest.suggest import suggest_plan
    from memcalc.report import suggested

    with progress(f"finding ways to train {plan.model}") as steps:
        return steps.answer_until_stopped(
            lambda seen: suggest_plan(plan, use_cache=use_cache, seen=seen),
            lambda so_far: map(suggested.words, so_far.found),
            len(list(ways(plan))),
        )


def _write_settings(plan: Plan, program: str, own: str | None, output: Path | None) -> None:
    """Write a plan as settings of a program; its own recipe is changed where it is named."""
    from memcalc.advice.suggest.snippets import is_of, snippet

    if own is not None and is_of(program, own):
        write_recipe(own, plan, output)
    else:
        put(snippet(plan, program), output)


def _find_cards(
    plan: Plan, work: Work, name: str, output: Path | None, *, verbose: bool, use_cache: bool
) -> None:
    """Find the cards that a model needs."""
    from memcalc.advice.suggest.gpus import cards
    from memcalc.advice.suggest.strategies import ways
    from memcalc.report import suggested

    with progress(f"finding cards that train {plan.model}") as steps:
        among = gpus.table() if verbose else None
        if work.prices is not None and work.prices.by_gpu:
            among = tuple(gpus.find(gpu) for gpu in work.prices.by_gpu)
        found, stopped = steps.answer_until_stopped(
            lambda seen: cards(plan, among=among, use_cache=use_cache, seen=seen),
            lambda so_far: map(suggested.card_words, so_far.found),
            2 * len(list(ways(plan))),
        )
    deliver_answer(found, name, output, verbose=verbose, work=work)
    if stopped:
        raise KeyboardInterrupt
    if not found.fitting:
        raise typer.Exit(1)
