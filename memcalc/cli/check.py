"""``memcalc check``."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from msgspec.structs import replace

from memcalc.budgets.check import CheckResult, Question, check, exit_code
from memcalc.budgets.collect import Effort, keep
from memcalc.budgets.formats import github, markdown, render, table
from memcalc.budgets.read import read
from memcalc.budgets.reasons import Remedy, no_remedy
from memcalc.budgets.records import Report
from memcalc.budgets.source import discover
from memcalc.cli.command import argument, option, say, verb
from memcalc.cli.output import NoCache, colored, put, width
from memcalc.cli.progress import progress
from memcalc.cli.values import DEVICE, SECONDS, TEXT, counted
from memcalc.errors import UsageError, sentence
from memcalc.files.formats import chosen, formats, listed
from memcalc.files.results import save as save_runs


class _Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """How and where to tell."""

    format: str
    outputs: tuple[Path, ...]
    quiet: bool


@verb(
    "memcalc check",
    "memcalc check memcalc.toml --format github",
    "memcalc check --update-baseline",
    fetches=True,
)
def command(
    files: Annotated[
        list[Path] | None,
        argument(
            "Budget files. Default: the nearest memcalc.toml, or pyproject.toml with a "
            "[tool.memcalc].",
            metavar="FILES",
        ),
    ] = None,
    format: Annotated[
        str, option("--format", "-f", value=TEXT, help=f"{listed(formats('check'))}.")
    ] = "table",
    output: Annotated[
        list[Path] | None,
        option(
            *("--output", "-o"),
            metavar="FILE",
            help="Write here too; format by extension; repeatable.",
        ),
    ] = None,
    quiet: Annotated[bool, option("--quiet", "-q", help="Print only what fails.")] = False,
    exit_zero: Annotated[
        bool, option("--exit-zero", help="Exit 0 even where a budget is exceeded.")
    ] = False,
    baseline: Annotated[
        Path | None, option("--baseline", metavar="FILE", help="Judge growth against this file.")
    ] = None,
    update_baseline: Annotated[
        bool, option("--update-baseline", help="Update the baseline, then judge.")
    ] = False,
    measure: Annotated[bool, option("--measure", help="Train for real, do not estimate.")] = False,
    device: Annotated[
        str, option("--device", value=DEVICE, help="Where to measure: cuda or cpu.")
    ] = "cuda",
    steps: Annotated[
        int, option("--steps", value=counted(2), help="Optimizer steps of a measured run.")
    ] = 4,
    timeout: Annotated[
        float, option("--timeout", value=SECONDS, help="Seconds for one measured run.")
    ] = 600.0,
    saved: Annotated[
        list[Path] | None,
        option("--from", metavar="FILE", help="Judge these saved results; repeatable."),
    ] = None,
    save: Annotated[
        Path | None, option("--save", metavar="FILE", help="Keep what was found, for --from.")
    ] = None,
    suggest: Annotated[
        bool, option("--suggest", help="Estimate changes that would meet exceeded budgets.")
    ] = False,
    jobs: Annotated[
        int | None,
        option(
            *("--jobs", "-j"),
            value=counted(1),
            help="Largest number of processes. Default: by cores and free memory.",
        ),
    ] = None,
    no_cache: NoCache = False,
) -> None:
    """Judge the memory budgets of a repository's training runs.

    Exit codes: 0 all budgets hold; 1 over budget; 2 the files or options are not understood, or
    hold no budget; 3 could not tell.
    """
    if measure and saved:
        raise UsageError("--measure finds out and --from reads: choose one.")
    delivery = _delivery(format, tuple(output or ()), quiet)
    effort = Effort(
        use_cache=not no_cache,
        workers=jobs,
        device=device if measure else None,
        steps=steps,
        timeout=timeout,
    )
    question = Question(
        effort=effort, saved=tuple(saved or ()), baseline=baseline, update=update_baseline
    )
    with _adviser(suggest, not no_cache) as remedy:
        question = replace(question, remedy=remedy)
        code = _run(files or [discover(Path.cwd())], question, delivery, exit_zero, save)
    raise typer.Exit(code)


@contextlib.contextmanager
def _adviser(wanted: bool, use_cache: bool) -> Iterator[Remedy]:
    if not wanted:
        yield no_remedy
        return
    from memcalc.budgets.remedies import Adviser

    with Adviser(use_cache=use_cache) as adviser:
        yield adviser


def _run(
    files: list[Path], question: Question, delivery: _Delivery, exit_zero: bool, save: Path | None
) -> int:
    """Check and tell."""
    try:
        with progress("checking memory budgets"):
            outcome = check([read(file) for file in files], question)
        code = exit_code(outcome.report, exit_zero=exit_zero)
        if save is not None:
            save_runs(save, keep(outcome.runs, outcome.evidence))
        _deliver(outcome, delivery, code)
    except Exception as error:
        if delivery.format == "github":
            put(github.refusal(sentence(error)))
        raise
    return code


def _delivery(format: str, outputs: tuple[Path, ...], quiet: bool) -> _Delivery:
    for path in outputs:
        chosen("check", None, path)
    return _Delivery(format=chosen("check", format), outputs=outputs, quiet=quiet)


def _deliver(outcome: CheckResult, delivery: _Delivery, code: int) -> None:
    report = outcome.report
    for path in delivery.outputs:
        put(render(report, chosen("check", None, path), code), path)
    put(_text(report, delivery, code))
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if delivery.format == "github" and summary:
        _append(Path(summary), markdown.render(report))


def _text(report: Report, delivery: _Delivery, code: int) -> str:
    if delivery.format == "table":
        return table.render(
            report,
            width=width(),
            color=colored(None),
            only_failures=delivery.quiet,
        )
    if delivery.format == "markdown":
        return markdown.render(report, only_failures=delivery.quiet)
    return render(report, delivery.format, code)


def _append(path: Path, text: str) -> None:
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(text + "\n")
    except OSError as error:
        # The verdict stands; only its copy on GitHub's page is missing.
        say(f"warning: cannot write the step summary {path}: {error.strerror}")
