"""Runs a check from files to a report, and returns the exit code of a report."""

from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from memcalc.budgets import baseline, collect
from memcalc.budgets.collect import Question
from memcalc.budgets.judge import judge, worst_first
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


def check(files: Sequence[BudgetFile], question: Question) -> tuple[Report, list[Run]]:
    """Estimate or measure every run of the budget files and judge it; return report and runs.

    Raises:
        UsageError: a file names something unknown, or a result or baseline cannot be read.
    """
    if question.baseline is not None:
        files = [replace(file, baseline=str(question.baseline)) for file in files]
    for file in files:
        collect.validate(file.runs)
    known = [_read_baseline(file, question) for file in files]
    runs = tuple(run for file in files for run in file.runs)
    evidence = tuple(collect.find_out(runs, question))
    versions = baseline.find_versions(evidence)
    verdicts: list[Verdict] = []
    warnings = list(dict.fromkeys(each.doubt for each in evidence if each.doubt))
    notes = _note_decimal_sizes(runs)
    for device in dict.fromkeys(e.measurement.device for e in evidence if e.measurement):
        on_cpu = "the CPU: the figures are of PyTorch's CPU allocator"
        notes.append(f"measured on {on_cpu if device == 'cpu' else device}")
    if not question.saved and question.device is None:
        notes += dict.fromkeys(note for run in runs for note in shell_notes(run.plan))
    at = 0
    for file, before in zip(files, known, strict=True):
        found = evidence[at : at + len(file.runs)]
        at += len(file.runs)
        if question.update:
            before = _write_baseline(file, found, versions)
            notes.append(f"wrote {shown_path(Path(file.baseline))}")
        verdicts += _judge_file(file, found, before, question)
        warnings += _warn_about_baseline(file, before, versions)
    report = Report(
        verdicts=worst_first(verdicts),
        warnings=tuple(warnings),
        notes=tuple(notes),
        versions=versions,
    )
    return report, collect.as_runs(runs, evidence)


def exit_code(report: Report, *, exit_zero: bool = False) -> int:
    """Return 0 if all budgets hold, 1 if one is over, 3 if one is unknown.

    Over wins: a CI job that lets a 3 pass must not let an exceeded budget pass with it.
    ``exit_zero`` forgives only what is over.
    """
    if report.count(Status.OVER) and not exit_zero:
        return OverBudgetError.exit_code
    return EstimateError.exit_code if report.count(Status.UNKNOWN) else 0


def _read_baseline(file: BudgetFile, question: Question) -> Baseline | None:
    """Read a budget file's baseline; None if missing, or if a new one will be written."""
    if question.update:
        return None
    found = baseline.read(Path(file.baseline))
    if question.baseline is not None and found is None:
        raise UsageError(f"There is no {question.baseline}: --update-baseline writes it.")
    return found


def _write_baseline(
    file: BudgetFile, found: Sequence[Evidence], versions: dict[str, str]
) -> Baseline:
    """Write a new baseline of a budget file; raise EstimateError if a run failed."""
    failed = {run.name: e.error for run, e in zip(file.runs, found, strict=True) if e.error}
    if failed:
        names, reason = ", ".join(failed), next(iter(failed.values()))
        raise EstimateError(f"The baseline is unchanged: {names} could not be estimated ({reason})")
    made = baseline.make(Path(file.baseline), file.runs, found, versions)
    baseline.write(made)
    return made


def _judge_file(
    file: BudgetFile, found: Sequence[Evidence], before: Baseline | None, question: Question
) -> list[Verdict]:
    """Judge all runs of a budget file, with plan changes as a reason for growth."""
    verdicts = []
    for run, evidence in zip(file.runs, found, strict=True):
        known = before.runs.get(run.name) if before is not None else None
        for verdict in judge(run, evidence, known, question.remedy):
            grows = verdict.budget.rule is Rule.GROWTH and verdict.limit is not None
            if known is not None and grows:
                # Growth is explained first by what the pull request changed in the plan.
                now = baseline.brief(run.plan, Path(file.baseline).parent)
                reasons = ", ".join(plan_changes(known.plan, now)), verdict.reason
                verdict = replace(verdict, reason="; ".join(filter(None, reasons)))
            verdicts.append(verdict)
    return verdicts


def _note_decimal_sizes(runs: Sequence[BudgetedRun]) -> list[str]:
    """Return a note on each budget in kB, MB, GB or TB: its size in MiB."""
    budgets = [budget for run in runs for budget in run.budgets]
    amounts = [amount for one in budgets for amount in (one.amount, one.margin) if amount]
    return list(
        dict.fromkeys(
            f"{one.text} is understood as {format_mib(one.bytes)} ({one.bytes:,} bytes)"
            for one in amounts
            if one.bytes is not None and one.is_decimal
        )
    )


def _warn_about_baseline(
    file: BudgetFile, before: Baseline | None, versions: dict[str, str]
) -> list[str]:
    """Return warnings: no baseline, runs missing in it, or other library versions."""
    growing = [run.name for run in file.runs if any(b.rule is Rule.GROWTH for b in run.budgets)]
    shown = shown_path(Path(file.baseline))
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
