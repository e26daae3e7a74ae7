"""``memcalc check``."""

import contextlib
import os
from pathlib import Path

import typer
from msgspec.structs import replace

from memcalc.budgets.check import check, exit_code
from memcalc.budgets.collect import Question
from memcalc.budgets.read import read
from memcalc.budgets.records import Evidence, Report
from memcalc.budgets.source import discover
from memcalc.cli.command import say
from memcalc.cli.declare import verb
from memcalc.cli.output import chosen, deliver, put
from memcalc.cli.progress import progress
from memcalc.errors import UsageError, sentence
from memcalc.files.results import save as save_runs
from memcalc.report import checked
from memcalc.report.answer import headline
from memcalc.report.check_formats import annotate_refusal, as_markdown, writers


@verb(
    "memcalc check",
    "memcalc check memcalc.toml --format github",
    "memcalc check --update-baseline",
    fetches=True,
)
def command(
    files: list[Path] | None = None,
    format: str = "table",
    output: list[Path] | None = None,
    quiet: bool = False,
    exit_zero: bool = False,
    baseline: Path | None = None,
    update_baseline: bool = False,
    measure: bool = False,
    device: str | None = None,
    steps: int | None = None,
    timeout: float = 600.0,
    saved: list[Path] | None = None,
    save: Path | None = None,
    suggest: bool = False,
    jobs: int | None = None,
    no_cache: bool = False,
) -> None:
    """Judge the memory budgets of a repository's training runs.

    Exit codes: 0 all budgets hold; 1 over budget; 2 the files or options are not understood, or
    hold no budget; 3 could not tell.
    """
    _check_options(measure=measure, saved=saved, device=device, steps=steps)
    name = chosen("check", format)
    written = {path: chosen("check", None, path) for path in output or ()}
    question = Question(
        use_cache=not no_cache,
        workers=jobs,
        device=(device or "cuda") if measure else None,
        steps=steps or 4,
        timeout=timeout,
        saved=tuple(saved or ()),
        baseline=baseline,
        update=update_baseline,
    )
    try:
        report = _judge_files(files or [discover(Path.cwd())], question, suggest, save)
        code = exit_code(report, exit_zero=exit_zero)
        for path, kind in written.items():
            deliver(kind, path, checked.blocks(report), **writers(report, code))
        others = writers(report, code, only_failures=quiet)
        deliver(name, None, checked.blocks(report, only_failures=quiet), **others)
    except Exception as error:
        if name == "github":
            put(annotate_refusal(sentence(error)))
        raise
    _append_summary(report, name)
    raise typer.Exit(code)


def _check_options(*, measure: bool, saved: object, device: object, steps: object) -> None:
    """Raise UsageError for options that contradict each other."""
    if measure and saved:
        raise UsageError("--measure finds out and --from reads: choose one.")
    alone = {"--device": device, "--steps": steps}
    if not measure and (flag := next((key for key in alone if alone[key] is not None), None)):
        raise UsageError(f"{flag} is for measuring: add --measure, or leave {flag} out.")


def _judge_files(files: list[Path], question: Question, suggest: bool, save: Path | None) -> Report:
    """Read budget files and judge their runs, showing progress; save the runs if asked."""
    with contextlib.ExitStack() as stack:
        if suggest:
            from memcalc.budgets.remedies import Adviser

            adviser = Adviser(use_cache=question.use_cache, timeout=question.timeout)
            question = replace(question, remedy=adviser)
        read_files = [read(file) for file in files]
        steps = stack.enter_context(progress("checking memory budgets"))
        count = sum(len(file.runs) for file in read_files)

        def seen(name: str, found: Evidence) -> None:
            steps.at(steps.done + 1, count)
            answer = found.prediction
            steps.row(f"{name}: {headline(answer).text if answer else found.error}")

        steps.at(0, count)
        report, found = check(read_files, replace(question, seen=seen))
    if save is not None:
        save_runs(save, found)
    return report


def _append_summary(report: Report, format: str) -> None:
    """Append the report as Markdown to GitHub's job summary, in the github format."""
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if not summary or format != "github":
        return
    try:
        with open(summary, "a", encoding="utf-8") as file:
            file.write(as_markdown(report) + "\n")
    except OSError as error:
        # The verdict stands; only its copy on GitHub's page is missing.
        say(f"warning: cannot write the step summary {summary}: {error.strerror}")
