"""``memcalc check``."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Annotated

import typer
from msgspec.structs import replace

from memcalc.budgets.check import CheckResult, Question, check, exit_code
from memcalc.budgets.collect import Effort, keep
from memcalc.budgets.formats import github, markdown, writers
from memcalc.budgets.read import read
from memcalc.budgets.records import Evidence, Report
from memcalc.budgets.source import discover
from memcalc.cli.command import Steps, Timeout, argument, option, say, verb
from memcalc.cli.output import NoCache, deliver, put
from memcalc.cli.progress import progress
from memcalc.cli.values import DEVICE, TEXT, counted
from memcalc.errors import UsageError, sentence
from memcalc.files.formats import chosen, formats, listed
from memcalc.files.results import save as save_runs
from memcalc.report import checked
from memcalc.report.answer import headline

_Files = Annotated[
    list[Path] | None,
    argument(
        "Budget files. Default: the nearest memcalc.toml, or pyproject.toml with a [tool.memcalc].",
        metavar="FILES",
    ),
]
_Format = Annotated[str, option("--format", "-f", value=TEXT, help=f"{listed(formats('check'))}.")]
_Output = Annotated[
    list[Path] | None,
    option(
        *("--output", "-o"),
        metavar="FILE",
        help="Write here too; format by extension; repeatable.",
    ),
]
_ExitZero = Annotated[bool, option("--exit-zero", help="Exit 0 even where a budget is exceeded.")]
_Baseline = Annotated[
    Path | None, option("--baseline", metavar="FILE", help="Judge growth against this file.")
]
_UpdateBaseline = Annotated[
    bool, option("--update-baseline", help="Update the baseline, then judge.")
]
_Device = Annotated[str, option("--device", value=DEVICE, help="Where to measure: cuda or cpu.")]
_Saved = Annotated[
    list[Path] | None,
    option("--from", metavar="FILE", help="Judge these saved results; repeatable."),
]
_Save = Annotated[
    Path | None, option("--save", metavar="FILE", help="Keep what was found, for --from.")
]
_Suggest = Annotated[
    bool, option("--suggest", help="Estimate changes that would meet exceeded budgets.")
]
_Jobs = Annotated[
    int | None,
    option(
        *("--jobs", "-j"),
        value=counted(1),
        help="Largest number of processes. Default: by cores and free memory.",
    ),
]


@verb(
    "memcalc check",
    "memcalc check memcalc.toml --format github",
    "memcalc check --update-baseline",
    fetches=True,
)
def command(
    files: _Files = None,
    format: _Format = "table",
    output: _Output = None,
    quiet: Annotated[bool, option("--quiet", "-q", help="Print only what fails.")] = False,
    exit_zero: _ExitZero = False,
    baseline: _Baseline = None,
    update_baseline: _UpdateBaseline = False,
    measure: Annotated[bool, option("--measure", help="Train for real, do not estimate.")] = False,
    device: _Device = "cuda",
    steps: Steps = 4,
    timeout: Timeout = 600.0,
    saved: _Saved = None,
    save: _Save = None,
    suggest: _Suggest = False,
    jobs: _Jobs = None,
    no_cache: NoCache = False,
) -> None:
    """Judge the memory budgets of a repository's training runs.

    Exit codes: 0 all budgets hold; 1 over budget; 2 the files or options are not understood, or
    hold no budget; 3 could not tell.
    """
    if measure and saved:
        raise UsageError("--measure finds out and --from reads: choose one.")
    name = chosen("check", format)
    written = {path: chosen("check", None, path) for path in output or ()}
    effort = Effort(workers=jobs, steps=steps, timeout=timeout, use_cache=not no_cache)
    question = Question(
        effort=replace(effort, device=device if measure else None),
        saved=tuple(saved or ()),
        baseline=baseline,
        update=update_baseline,
    )
    files = files or [discover(Path.cwd())]
    try:
        outcome = _checked(files, question, suggest, save)
        code = exit_code(outcome.report, exit_zero=exit_zero)
        for path, kind in written.items():
            deliver(kind, path, checked.blocks(outcome.report), **writers(outcome.report, code))
        others = writers(outcome.report, code, only_failures=quiet)
        deliver(name, None, checked.blocks(outcome.report, only_failures=quiet), **others)
    except Exception as error:
        if name == "github":
            put(github.refusal(sentence(error)))
        raise
    if name == "github":
        _append_summary(outcome.report)
    raise typer.Exit(code)


def _checked(
    files: list[Path], question: Question, suggest: bool, save: Path | None
) -> CheckResult:
    with contextlib.ExitStack() as stack:
        if suggest:
            from memcalc.budgets.remedies import Adviser

            adviser = stack.enter_context(Adviser(use_cache=question.effort.use_cache))
            question = replace(question, remedy=adviser)
        read_files = [read(file) for file in files]
        steps = stack.enter_context(progress("checking memory budgets"))
        count = sum(len(file.runs) for file in read_files)

        def seen(name: str, found: Evidence) -> None:
            steps.at(steps.done + 1, count)
            answer = found.prediction
            steps.row(f"{name}: {headline(answer).text if answer else found.error}")

        steps.at(0, count)
        question = replace(question, effort=replace(question.effort, seen=seen))
        outcome = check(read_files, question)
    if save is not None:
        save_runs(save, keep(outcome.runs, outcome.evidence))
    return outcome


def _append_summary(report: Report) -> None:
    """Show it on the page that GitHub has for the job."""
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if not summary:
        return
    try:
        with open(summary, "a", encoding="utf-8") as file:
            file.write(markdown.render(report) + "\n")
    except OSError as error:
        # The verdict stands; only its copy on GitHub's page is missing.
        say(f"warning: cannot write the step summary {summary}: {error.strerror}")
