"""Finds out what each run costs: estimated, measured, or read from saved results."""

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from memcalc.budgets.records import BudgetedRun, Evidence
from memcalc.catalog import models
from memcalc.catalog.plan import STEPS
from memcalc.errors import MemcalcError, SettingError, UsageError
from memcalc.estimation.estimate import answers
from memcalc.estimation.question import canonical
from memcalc.estimation.validate import check_names
from memcalc.files import artifact
from memcalc.files.results import Run, load, predictions
from memcalc.records.fields import FIELDS
from memcalc.records.plan import Plan
from memcalc.records.prediction import Prediction
from memcalc.script.simulate import simulate


class Effort(msgspec.Struct, frozen=True, kw_only=True):
    """How to find out."""

    use_cache: bool = True
    workers: int | None = None
    device: str | None = None
    """Measure here (``cuda`` or ``cpu``); ``None``: estimate."""
    steps: int = 4
    timeout: float = 600.0
    """Seconds after which a run is ended, estimated, simulated or measured."""
    seen: Callable[[str, Evidence], None] = lambda name, found: None
    """Told of each run's estimate, by its name, as soon as it is known."""


def validate(runs: Sequence[BudgetedRun]) -> None:
    """Find what the runs of a file name, all but their models: those fail one by one.

    Raises:
        UsageError: something is unknown, with its line.
    """
    for run in runs:
        try:
            check_names(run.plan)
        except SettingError as error:
            raise UsageError(_with_line(error, run)) from None


def _with_line(error: MemcalcError, run: BudgetedRun) -> str:
    """What went wrong, behind the line of the setting that is to blame."""
    if not isinstance(error, SettingError):
        return str(error)
    return f"{run.where.file}:{run.lines.get(error.setting, run.where.line)}: {error}"


def estimate(runs: Sequence[BudgetedRun], effort: Effort) -> list[Evidence]:
    """Estimate every run; runs with the same plan are estimated once.

    A command is simulated in the folder of its budget file; what it prints goes to standard error,
    and nothing is kept, for a script may have changed.
    """
    estimated = _estimated([run for run in runs if not run.plan.command], effort)
    found: dict[int, Evidence] = {}
    # Estimates are made side by side, before the machine belongs to one command after the other.
    for at, run in sorted(enumerate(runs), key=lambda one: one[1].plan.command is not None):
        folder = Path(run.where.file).resolve().parent
        if run.plan.command:
            found[at] = of_command(run.plan, folder, run.name, effort.timeout)
        else:
            found[at] = next(estimated)
        effort.seen(run.name, found[at])
    return [found[at] for at in range(len(runs))]


def _estimated(runs: Sequence[BudgetedRun], effort: Effort) -> Iterator[Evidence]:
    found: dict[tuple[str, Plan], Prediction | MemcalcError] = {}
    said = {}
    for method in dict.fromkeys(run.method for run in runs):
        plans = {_key(run.plan): run.plan for run in runs if run.method == method}
        asked = list(plans.values())
        told = answers(
            asked,
            method=method,
            use_cache=effort.use_cache,
            workers=effort.workers,
            timeout=effort.timeout,
        )
        said[method] = zip(plans, told, strict=True)
    for run in runs:
        key = _key(run.plan)
        while (run.method, key) not in found:
            known, answer = next(said[run.method])
            found[run.method, known] = answer
        yield _evidence(_varied(found[run.method, key], run, effort.timeout), run)


def _varied(
    answer: Prediction | MemcalcError, run: BudgetedRun, timeout: float
) -> Prediction | MemcalcError:
    """The answer over the batches that a run names."""
    if run.lengths is None or isinstance(answer, MemcalcError):
        return answer
    from memcalc.estimation.lengths import over_batches, varied

    try:
        return over_batches(answer, varied(answer.plan, run.lengths, timeout))
    except MemcalcError as error:
        return error


def _evidence(answer: Prediction | MemcalcError, run: BudgetedRun) -> Evidence:
    if isinstance(answer, MemcalcError):
        return Evidence(error=_with_line(answer, run))
    known = answer.varied.lengths if answer.varied is not None else None
    # A figure of another kind is none.
    if answer.method != run.method:
        return Evidence(error=f"the saved answer used method {answer.method}, not {run.method}")
    if known != run.lengths:
        return Evidence(error=f"the saved answer is for lengths {known}, not {run.lengths}")
    return Evidence(prediction=answer)


def measure(runs: Sequence[BudgetedRun], effort: Effort) -> list[Evidence]:
    """Train every run for real, one after the other, and put its estimate beside it."""
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
    estimates = estimate(runs, effort)
    with Runner() as runner:
        for run, estimated in zip(runs, estimates, strict=True):
            key = _key(run.plan)
            if key in found:
                continue
            request = Request(
                plan=run.plan,
                device=effort.device or "cuda",
                steps=effort.steps,
                timeout=effort.timeout,
            )
            try:
                measured = runner.measure(request, lambda reading: None)
                found[key] = Evidence(prediction=estimated.prediction, measurement=measured)
            except MemcalcError as error:
                # An estimate must not stand in for the measurement that was asked for.
                found[key] = Evidence(error=str(error))
    return [found[_key(run.plan)] for run in runs]


def saved(runs: Sequence[BudgetedRun], files: Sequence[Path]) -> list[Evidence]:
    """Look every run up in results that memcalc wrote.

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
    known = {_key(result.plan): result for result in results}
    names = " and ".join(str(file) for file in files)
    return [_saved(run, known.get(_key(run.plan)), list(known.values()), names) for run in runs]


def _saved(run: BudgetedRun, result: Run | None, others: Sequence[Run], names: str) -> Evidence:
    if result is None:
        plans = [other.plan for other in others]
        unlike = [[f for f in FIELDS if getattr(o, f) != getattr(run.plan, f)] for o in plans]
        closest = min(unlike, key=len, default=[])
        beside = f"; the closest differs in {', '.join(closest)}" if 0 < len(closest) < 5 else ""
        return Evidence(error=f"There is no result of this run in {names}{beside}")
    answer = result.measurement or result.prediction
    if answer is None:
        return Evidence(error=result.error or f"{names} says nothing about this run")
    stale, doubt = _compared(run, answer.config, names)
    if stale:
        return Evidence(error=stale)
    if result.measurement is None and result.prediction is not None:
        return replace(_evidence(result.prediction, run), doubt=doubt)
    return Evidence(prediction=result.prediction, measurement=result.measurement, doubt=doubt)


def _compared(run: BudgetedRun, then: str | None, names: str) -> tuple[str, str]:
    """Whether a result is of the model as it is now: why it is not, and what could not be seen."""
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


def _key(plan: Plan) -> Plan:
    """One plan for a question, however its names are spelled and its arguments are ordered."""
    arguments = sorted(plan.optim_args, key=lambda one: one[0])
    return canonical(replace(plan, optim_args=tuple(arguments)))


def keep(runs: Sequence[BudgetedRun], found: Sequence[Evidence]) -> list[Run]:
    """The evidence in the form in which results are saved."""
    return [
        Run(plan=run.plan, prediction=e.prediction, measurement=e.measurement, error=e.error)
        for run, e in zip(runs, found, strict=True)
    ]


def of_command(plan: Plan, folder: Path, name: str, timeout: float = math.inf) -> Evidence:
    """What is known of a command that runs in a folder, by the name of its run.

    ``timeout``: seconds after which it is ended.
    """
    try:
        counted = replace(plan, steps=STEPS if plan.steps is None else plan.steps)
        found = simulate(counted, folder, timeout=timeout)
    except MemcalcError as error:
        return Evidence(error=str(error))
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
    return Evidence(prediction=replace(found.traced.prediction, plan=plan), doubt=doubt)
