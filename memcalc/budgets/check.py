"""One check from files to a report, and the exit code that a report has."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from memcalc.budgets import baseline, collect
from memcalc.budgets.judge import Remedy, judge, no_remedy, worst_first
from memcalc.budgets.records import (
    Baseline,
    BudgetedRun,
    BudgetFile,
    Evidence,
    Report,
    Rule,
    Status,
    Verdict,
)
from memcalc.budgets.source import shown_path
from memcalc.errors import EstimateError, OverBudgetError, UsageError
from memcalc.estimation.question import shell_notes
from memcalc.files.results import Run
from memcalc.records.fields import plan_changes, version_changes
from memcalc.units import format_mib


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """How to check."""

    effort: collect.Effort = msgspec.field(default_factory=collect.Effort)
    saved: tuple[Path, ...] = ()
    """Results to judge instead of finding out."""
    baseline: Path | None = None
    """Instead of the one the file names."""
    update: bool = False
    """Write the baseline anew from what is found."""
    remedy: Remedy = no_remedy


def check(files: Sequence[BudgetFile], question: Question) -> tuple[Report, list[Run]]:
    """Find out what every run costs and judge its budgets; returns what was found as well.

    Raises:
        UsageError: a file names something unknown, or a result or baseline cannot be read.
    """
    for file in files:
        collect.validate(file.runs)
    known = [_known(file, question) for file in files]
    runs = tuple(run for file in files for run in file.runs)
    find_out = collect.estimate if question.effort.device is None else collect.measure
    saved = collect.saved(runs, question.saved) if question.saved else None
    evidence = tuple(find_out(runs, question.effort) if saved is None else saved)
    versions = baseline.versions_of(evidence)
    verdicts: list[Verdict] = []
    warnings = list(dict.fromkeys(each.doubt for each in evidence if each.doubt))
    notes = [*_understood(runs), *_measured(evidence)]
    if saved is None and question.effort.device is None:
        notes += dict.fromkeys(note for run in runs for note in shell_notes(run.plan))
    at = 0
    for file, before in zip(files, known, strict=True):
        found = evidence[at : at + len(file.runs)]
        at += len(file.runs)
        if question.update:
            before = _updated(file, question, found, versions)
            notes.append(f"wrote {shown_path(_path(file, question))}")
        verdicts += _judged(file, found, before, question)
        warnings += _warnings(file, before, versions, _path(file, question))
    report = Report(
        verdicts=worst_first(verdicts),
        warnings=tuple(warnings),
        notes=tuple(notes),
        versions=versions,
    )
    return report, collect.keep(runs, evidence)


def exit_code(report: Report, *, exit_zero: bool = False) -> int:
    """0: all hold; 1: at least one does not; 3: none was seen over, but some could not be told.

    Over wins: who lets a 3 pass must not let an exceeded budget pass with it. ``exit_zero``
    forgives only what is over.
    """
    if report.count(Status.OVER) and not exit_zero:
        return OverBudgetError.exit_code
    return EstimateError.exit_code if report.count(Status.UNKNOWN) else 0


def _path(file: BudgetFile, question: Question) -> Path:
    return question.baseline or Path(file.baseline)


def _known(file: BudgetFile, question: Question) -> Baseline | None:
    found = None if question.update else baseline.read(_path(file, question))
    if question.baseline is not None and found is None and not question.update:
        raise UsageError(f"There is no {question.baseline}: --update-baseline writes it.")
    return found


def _updated(
    file: BudgetFile, question: Question, found: Sequence[Evidence], versions: dict[str, str]
) -> Baseline:
    failed = {run.name: e.error for run, e in zip(file.runs, found, strict=True) if e.error}
    if failed:
        names, reason = ", ".join(failed), next(iter(failed.values()))
        raise EstimateError(f"The baseline is unchanged: {names} could not be estimated ({reason})")
    made = baseline.make(_path(file, question), file.runs, found, versions)
    baseline.write(made)
    return made


def _judged(
    file: BudgetFile, found: Sequence[Evidence], before: Baseline | None, question: Question
) -> list[Verdict]:
    verdicts = []
    for run, evidence in zip(file.runs, found, strict=True):
        known = before.runs.get(run.name) if before is not None else None
        for verdict in judge(run, evidence, known, question.remedy):
            grows = verdict.budget.rule is Rule.GROWTH and verdict.limit is not None
            if known is not None and grows:
                # Growth is explained first by what the pull request changed in the plan.
                now = baseline.brief(run.plan, _path(file, question).parent)
                reasons = ", ".join(plan_changes(known.plan, now)), verdict.reason
                verdict = replace(verdict, reason="; ".join(filter(None, reasons)))
            verdicts.append(verdict)
    return verdicts


def _understood(runs: Sequence[BudgetedRun]) -> list[str]:
    said: dict[str, None] = {}
    for run in runs:
        for budget in run.budgets:
            for amount in (budget.amount, budget.margin):
                if amount is not None and amount.bytes is not None and amount.is_decimal:
                    size = f"{format_mib(amount.bytes)} ({amount.bytes:,} bytes)"
                    said[f"{amount.text} is understood as {size}"] = None
    return list(said)


def _measured(evidence: Sequence[Evidence]) -> list[str]:
    return [
        "measured on the CPU: the figures are of PyTorch's CPU allocator"
        if device == "cpu"
        else f"measured on {device}"
        for device in {e.measurement.device: None for e in evidence if e.measurement is not None}
    ]


def _warnings(
    file: BudgetFile, before: Baseline | None, versions: dict[str, str], path: Path
) -> list[str]:
    growing = [run.name for run in file.runs if any(b.rule is Rule.GROWTH for b in run.budgets)]
    shown = shown_path(path)
    write = "memcalc check --update-baseline writes it"
    if before is None:
        return [f"there is no {shown}: growth cannot be judged; {write}"] if growing else []
    found = []
    missing = [name for name in growing if name not in before.runs]
    if missing:
        found.append(f"{shown} does not hold {', '.join(missing)}: {write}")
    differences = version_changes(before.versions, versions)
    if differences:
        found.append(f"{shown} was written with other versions: {'; '.join(differences)}")
    return found
