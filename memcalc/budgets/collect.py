"""Finds out what each run costs: estimated, measured, or read from saved results."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from memcalc.budgets.judge import Remedy, no_remedy
from memcalc.budgets.records import BudgetedRun, Evidence
from memcalc.budgets.remembered import find_key, recall, remember
from memcalc.catalog import models
from memcalc.catalog.plan import STEPS
from memcalc.errors import MemcalcError, SettingError, UsageError
from memcalc.estimation.estimate import answers
from memcalc.estimation.question import canonical, check_names
from memcalc.files import artifact
from memcalc.files.results import Run, load, predictions
from memcalc.records.fields import FIELDS
from memcalc.records.plan import Plan
from memcalc.records.prediction import Prediction
from memcalc.script.simulate import simulate


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """How to check."""

    use_cache: bool = True
    workers: int | None = None
    device: str | None = None
    """Measure here (``cuda`` or ``cpu``); ``None``: estimate."""
    steps: int = 4
    timeout: float = 600.0
    """Seconds after which a run is ended, estimated, simulated or measured."""
    saved: tuple[Path, ...] = ()
    """Results to judge in place of new ones."""
    baseline: Path | None = None
    """A baseline in place of the one that the file names."""
    update: bool = False
    """Write the baseline from what is found."""
    remedy: Remedy = no_remedy
    seen: Callable[[str, Evidence], None] = lambda name, found: None
    """Called with the name and estimate of each run, as soon as it is known."""


def validate(runs: Sequence[BudgetedRun]) -> None:
    """Raise UsageError for an unknown name in any run's plan; models are not checked.

    Raises:
        UsageError: something is unknown, with its line.
    """
    for run in runs:
        try:
            check_names(run.plan)
        except SettingError as error:
            raise UsageError(_prefix_line(error, run)) from None


def _prefix_line(error: MemcalcError, run: BudgetedRun) -> str:
    """Return an error's text, with file and line of the setting that caused it in front."""
    if not isinstance(error, SettingError):
        return str(error)
    return f"{run.where.file}:{run.lines.get(error.setting, run.where.line)}: {error}"


def find_out(runs: Sequence[BudgetedRun], question: Question) -> list[Evidence]:
    """Return the figures of every run: from saved results, a measurement or an estimate.

    Raises:
        UsageError: a saved result cannot be read, or a run cannot be measured.
    """
    if question.saved:
        return look_up(runs, question.saved)
    return estimate(runs, question) if question.device is None else measure(runs, question)


def estimate(runs: Sequence[BudgetedRun], question: Question) -> list[Evidence]:
    """Estimate every run, or simulate its command; equal plans are estimated once.

    A command is simulated in the folder of its budget file; its output goes to standard error.
    """
    estimates = _estimate_plans([run for run in runs if not run.plan.command], question)
    found: dict[int, Evidence] = {}
    # Estimates are made side by side, before the machine belongs to one command after the other.
    for at, run in sorted(enumerate(runs), key=lambda one: one[1].plan.command is not None):
        folder = Path(run.where.file).resolve().parent
        if run.plan.command:
            found[at] = simulate_command(
                run.plan, folder, run.name, question.timeout, use_cache=question.use_cache
            )
        else:
            found[at] = next(estimates)
        question.seen(run.name, found[at])
    return [found[at] for at in range(len(runs))]


def _estimate_plans(runs: Sequence[BudgetedRun], question: Question) -> Iterator[Evidence]:
    """Yield the estimate of each run's plan; equal plans are estimated once."""
    found: dict[tuple[str, Plan], Prediction | MemcalcError] = {}
    pending = {}
    for method in dict.fromkeys(run.method for run in runs):
        plans = {_normalize_plan(run.plan): run.plan for run in runs if run.method == method}
        answered = answers(
            list(plans.values()),
            method=method,
            use_cache=question.use_cache,
            workers=question.workers,
            timeout=question.timeout,
        )
        pending[method] = zip(plans, answered, strict=True)
    for run in runs:
        key = _normalize_plan(run.plan)
        while (run.method, key) not in found:
            known, answer = next(pending[run.method])
            found[run.method, known] = answer
        answer = found[run.method, key]
        if run.lengths is not None and not isinstance(answer, MemcalcError):
            answer = _vary_lengths(answer, run.lengths, question.timeout)
        yield _evidence(answer, run)


def _vary_lengths(answer: Prediction, lengths: str, timeout: float) -> Prediction | MemcalcError:
    """Return the prediction with its peak over batches of varying length."""
    from memcalc.estimation.lengths import run_varying_lengths, with_varied_peak

    try:
        return with_varied_peak(answer, run_varying_lengths(answer.plan, lengths, timeout))
    except MemcalcError as error:
        return error


def _evidence(answer: Prediction | MemcalcError, run: BudgetedRun) -> Evidence:
    """Return a prediction as evidence, or why it does not answer the run's question."""
    if isinstance(answer, MemcalcError):
        return Evidence(error=_prefix_line(answer, run))
    known = answer.varied.lengths if answer.varied is not None else None
    # A figure of another kind cannot be compared.
    if answer.method != run.method:
        return Evidence(error=f"the saved answer used method {answer.method}, not {run.method}")
    if known != run.lengths:
        return Evidence(error=f"the saved answer is for lengths {known}, not {run.lengths}")
    return Evidence(prediction=answer)


def measure(runs: Sequence[BudgetedRun], question: Question) -> list[Evidence]:
    """Train every run for real, one after the other; return measurements with estimates."""
    from memcalc.measure.runs.runner import Request, Runner

    if command := next((run for run in runs if run.plan.command), None):
        raise UsageError(
            f"{command.where}: a command is simulated, not measured: leave --measure out."
        )
    if varying := next((run for run in runs if run.lengths is not None), None):
        raise UsageError(
            f"{varying.where}: batches of varying length are replayed, not measured: leave "
            "--measure or lengths out."
        )
    found: dict[Plan, Evidence] = {}
    estimates = estimate(runs, question)
    with Runner() as runner:
        for run, estimated in zip(runs, estimates, strict=True):
            key = _normalize_plan(run.plan)
            if key in found:
                continue
            request = Request(
                plan=run.plan,
                device=question.device or "cuda",
                steps=question.steps,
                timeout=question.timeout,
            )
            try:
                measured = runner.measure(request, lambda reading: None)
                found[key] = Evidence(prediction=estimated.prediction, measurement=measured)
            except MemcalcError as error:
                # An estimate must not take the place of the measurement that was asked for.
                found[key] = Evidence(error=str(error))
    return [found[_normalize_plan(run.plan)] for run in runs]


def look_up(runs: Sequence[BudgetedRun], files: Sequence[Path]) -> list[Evidence]:
    """Find every run's figures in result files that memcalc wrote.

    Raises:
        UsageError: a file cannot be read, or holds no results.
    """
    results: list[Run] = []
    for file in files:
        data = artifact.read(file)
        if data.get("kind") == "measurements":
            results += load(file)
        else:
            results += (Run(plan=one.plan, prediction=one) for one in predictions(data, file))
    known = {_normalize_plan(result.plan): result for result in results}
    names = " and ".join(str(file) for file in files)
    return [
        _check_result(run, result, names)
        if (result := known.get(_normalize_plan(run.plan))) is not None
        else Evidence(error=f"There is no result of this run in {names}{_name_closest(run, known)}")
        for run in runs
    ]


def _name_closest(run: BudgetedRun, known: dict[Plan, Run]) -> str:
    """Return a clause naming the settings in which the most similar saved plan differs, or ""."""
    plans = [other.plan for other in known.values()]
    unlike = [[f for f in FIELDS if getattr(o, f) != getattr(run.plan, f)] for o in plans]
    closest = min(unlike, key=len, default=[])
    return f"; the closest differs in {', '.join(closest)}" if 0 < len(closest) < 5 else ""


def _check_result(run: BudgetedRun, result: Run, names: str) -> Evidence:
    """Return a saved result as evidence, or why it does not belong to the run."""
    answer = result.measurement or result.prediction
    if answer is None:
        return Evidence(error=result.error or f"{names} says nothing about this run")
    error, doubt = _compare_config(run, answer.config, names)
    if error:
        return Evidence(error=error)
    if result.measurement is None and result.prediction is not None:
        return replace(_evidence(result.prediction, run), doubt=doubt)
    return Evidence(prediction=result.prediction, measurement=result.measurement, doubt=doubt)


def _compare_config(run: BudgetedRun, then: str | None, names: str) -> tuple[str, str]:
    """Compare a result's config digest with today's; return an error and a doubt, or ""."""
    name = run.plan.name
    code = f"{names}: {name} is Python code; memcalc does not check whether it has changed"
    if run.plan.command is not None:
        return "", code
    try:
        now = models.find(run.plan.model)
    except MemcalcError as error:
        if then is None or models.is_local(run.plan.model):
            return str(error), ""
        return "", f"{names}: whether {name} has changed is not checked: {error}"
    if now.digest is None:
        return "", code
    if then is None:
        return f"{names} does not name its config of {name}: create it again", ""
    if then != now.digest:
        return f"{names} is for another config of {name}, now changed: create it again", ""
    return "", ""


def _normalize_plan(plan: Plan) -> Plan:
    """Return a plan in canonical spelling, equal for all spellings of the same question."""
    arguments = sorted(plan.optim_args, key=lambda one: one[0])
    return canonical(replace(plan, optim_args=tuple(arguments)))


def as_runs(runs: Sequence[BudgetedRun], found: Sequence[Evidence]) -> list[Run]:
    """Return the runs with their evidence as ``Run`` records, to save."""
    return [
        Run(plan=run.plan, prediction=e.prediction, measurement=e.measurement, error=e.error)
        for run, e in zip(runs, found, strict=True)
    ]


def simulate_command(
    plan: Plan, folder: Path, name: str, timeout: float = math.inf, *, use_cache: bool = True
) -> Evidence:
    """Run a command on the simulated GPU, or return its cached figures if unchanged.

    Args:
        plan: of the command.
        folder: where it runs.
        name: of its run.
        timeout: seconds after which it is ended.
        use_cache: keep what it took, and answer from what was kept.
    """
    key = find_key(plan, folder) if use_cache else None
    if (known := recall(key)) is not None:
        return known
    began = time.time()
    try:
        counted = replace(plan, steps=STEPS if plan.steps is None else plan.steps)
        found = simulate(counted, folder, timeout=timeout)
    except MemcalcError as error:
        return Evidence(error=str(error))
    if found.served is not None:
        return Evidence(prediction=replace(found.served, plan=plan))
    ending = found.ending
    if ending.code and not ending.out_of_memory:
        return Evidence(error=f"the script ended with exit code {ending.code}")
    if found.traced is None:
        return Evidence(error="the script put nothing on the GPU")
    if not ending.steps and not ending.out_of_memory:
        return Evidence(error="the script made no optimizer step")
    doubt = ""
    if ending.out_of_memory:
        where = ending.refusal
        at = f" in {where.phase.value} at {where.line}" if where is not None else ""
        doubt = f"{name}: GPU memory ran out{at}"
    evidence = Evidence(prediction=replace(found.traced.prediction, plan=plan), doubt=doubt)
    remember(key, plan, folder, evidence, found.opened, began)
    return evidence
