"""``memcalc check``."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec.structs import replace

from memcalc.budgets.check import CheckResult, Question, check, exit_code
from memcalc.budgets.collect import Effort, keep
from memcalc.budgets.formats import github, markdown, render, table
from memcalc.budgets.read import read
from memcalc.budgets.reasons import Remedy, no_remedy
from memcalc.budgets.records import Report
from memcalc.budgets.source import discover
from memcalc.cli.command import FILE, argument, exit_with, no_cache, option, say, verb
from memcalc.cli.output import colored, put, width
from memcalc.cli.progress import progress
from memcalc.cli.values import SECONDS, Value, counted
from memcalc.errors import UsageError, sentence
from memcalc.files import artifact
from memcalc.files.formats import chosen, formats, listed
from memcalc.files.results import save as save_runs
from memcalc.records.fields import FIELDS


class _Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """How and where to tell."""

    format: str
    outputs: tuple[Path, ...]
    quiet: bool


@verb
@argument(
    "files",
    "Budget files. Default: the nearest memcalc.toml, or pyproject.toml with a [tool.memcalc].",
    nargs=-1,
    type=FILE,
)
@option("--format", "-f", default="table", help=f"{listed(formats('check'))}.")
@option(
    "--output",
    "-o",
    multiple=True,
    type=FILE,
    help="Write here too; format by extension; repeatable.",
)
@option("--quiet", "-q", is_flag=True, help="Print only what fails.")
@option("--exit-zero", is_flag=True, help="Exit 0 even where a budget is exceeded.")
@option("--baseline", type=FILE, help="Judge growth against this file.")
@option("--update-baseline", is_flag=True, help="Update the baseline, then judge.")
@option("--measure", is_flag=True, help="Train for real, do not estimate.")
@option(
    "--device",
    type=Value(FIELDS["target"].type),
    default="cuda",
    help="Where to measure: cuda or cpu.",
)
@option("--steps", type=counted(2), default=4, help="Optimizer steps of a measured run.")
@option("--timeout", type=SECONDS, default=600.0, help="Seconds for one measured run.")
@option("--from", "saved", multiple=True, type=FILE, help="Judge these saved results; repeatable.")
@option("--save", type=FILE, help="Keep what was found, for --from.")
@option("--suggest", is_flag=True, help="Estimate changes that would meet exceeded budgets.")
@option(
    "--jobs",
    "-j",
    type=counted(1),
    help="Largest number of processes. Default: by cores and free memory.",
)
@no_cache("answers")
def command(
    files: tuple[Path, ...],
    format: str,
    output: tuple[Path, ...],
    quiet: bool,
    exit_zero: bool,
    baseline: Path | None,
    update_baseline: bool,
    measure: bool,
    device: str,
    steps: int,
    timeout: float,
    saved: tuple[Path, ...],
    save: Path | None,
    suggest: bool,
    jobs: int | None,
    use_cache: bool,
) -> None:
    """Judge the memory budgets of a repository's training runs.

    Exit codes: 0 all budgets hold; 1 over budget; 2 the files or options are not understood, or
    hold no budget; 3 could not tell.
    """
    if measure and saved:
        raise UsageError("--measure finds out and --from reads: choose one.")
    delivery = _delivery(format, output, quiet)
    effort = Effort(
        use_cache=use_cache,
        workers=jobs,
        device=device if measure else None,
        steps=steps,
        timeout=timeout,
    )
    question = Question(effort=effort, saved=saved, baseline=baseline, update=update_baseline)
    with _adviser(suggest, use_cache) as remedy:
        question = replace(question, remedy=remedy)
        code = _run(list(files) or [discover(Path.cwd())], question, delivery, exit_zero, save)
    raise exit_with(code)


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
        artifact.write(path, render(report, chosen("check", None, path), code))
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
