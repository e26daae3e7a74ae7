"""``memcalc suggest``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from memcalc.catalog import gpus
from memcalc.cli.command import exit_with, no_cache, option
from memcalc.cli.options import plan_of, with_plan
from memcalc.cli.output import OUTPUT, VERBOSE, deliver, format_option, in_full, put
from memcalc.cli.progress import progress
from memcalc.cli.values import TOKENS
from memcalc.errors import UsageError
from memcalc.files.formats import chosen
from memcalc.records.plan import Plan

if TYPE_CHECKING:
    from memcalc.report.suggested import Work

_PROGRAMS = ("trainer", "accelerate", "axolotl")


@with_plan
@option(
    "--as",
    "program",
    type=click.Choice(_PROGRAMS),
    help="Print the best way alone, as settings of this program.",
)
@option("--tokens", type=TOKENS, help="To train on: says hours.")
@option(
    "--price",
    help="Price of one GPU for an hour, or a TOML file with one for each GPU; says the cost.",
)
@format_option("suggestions")
@OUTPUT
@VERBOSE
@no_cache("traces")
def command(
    settings: dict[str, Any],
    program: str | None,
    tokens: float | None,
    price: str | None,
    format: str | None,
    output: Path | None,
    verbose: bool,
    use_cache: bool,
) -> None:
    """Find the best ways to train a model on a GPU, each one really estimated.

    Without --gpu: the smallest card for each way, among those that clouds rent, those that --price
    names, or all (-v). A step has --batch times --grad-accum samples; what is suggested keeps their
    number.
    """
    from memcalc.advice.suggest import prices
    from memcalc.advice.suggest.suggest import suggest_plan
    from memcalc.report import suggested

    plan = plan_of(settings, "memcalc suggest answers for")
    if price is not None and tokens is None:
        raise UsageError("A price needs a number of tokens: add --tokens 1e9.")
    name = chosen("suggestions", format, output)
    known = prices.read(price) if price is not None else None
    work = suggested.Work(tokens=tokens, prices=known)
    if plan.gpu is None:
        if program is not None:
            raise UsageError("Settings are those of one GPU: name it with --gpu.")
        _cards(plan, work, name, output, verbose=verbose, use_cache=use_cache)
        return
    if known is not None:
        known.of(gpus.find(plan.gpu).name)
    with progress(f"finding ways to train {plan.model}") as steps:

        def tell(one: Any, count: int) -> None:
            steps.at(steps.done + 1, count)
            steps.row(suggested.words(one))

        found = suggest_plan(plan, use_cache=use_cache, seen=tell)
    if program is not None and found.fitting:
        from memcalc.advice.suggest.snippets import snippet

        best = found.fitting[0].figures
        assert best is not None
        put(snippet(best.plan, program), output)
        return
    blocks = list(suggested.blocks(found, work, verbose=in_full(verbose, output, name)))
    deliver(name, output, blocks, json=lambda: suggested.as_json(found))
    if not found.fitting:
        raise exit_with(1)


def _cards(
    plan: Plan, work: Work, name: str, output: Path | None, *, verbose: bool, use_cache: bool
) -> None:
    """Which card the model needs."""
    from memcalc.advice.suggest.gpus import cards
    from memcalc.report import gpus as report

    with progress(f"finding cards that train {plan.model}") as steps:

        def tell(one: Any, count: int) -> None:
            steps.at(steps.done + 1, count)
            steps.row(report.words(one))

        among = gpus.table() if verbose else None
        if work.prices is not None and work.prices.by_gpu:
            among = tuple(gpus.find(gpu) for gpu in work.prices.by_gpu)
        found = cards(plan, among=among, use_cache=use_cache, seen=tell)
    blocks = list(report.blocks(found, work, verbose=in_full(verbose, output, name)))
    deliver(name, output, blocks, json=lambda: report.as_json(found))
    if not found.fitting:
        raise exit_with(1)
