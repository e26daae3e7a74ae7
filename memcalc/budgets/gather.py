"""Finds out what each run costs: estimated, measured, or read from saved results."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import msgspec

from memcalc import registry
from memcalc.budgets.records import BudgetedRun, Evidence
from memcalc.catalog import gpus, models
from memcalc.errors import MemcalcError, UsageError
from memcalc.estimation.estimate import answers
from memcalc.files import artifact
from memcalc.files.results import Run, load, predictions
from memcalc.records.fields import FIELDS
from memcalc.records.plan import Plan
from memcalc.records.prediction import Prediction
from memcalc.workload import tasks


class Effort(msgspec.Struct, frozen=True, kw_only=True):
    """How to find out."""

    use_cache: bool = True
    workers: int | None = None
    device: str | None = None
    """Measure here (``cuda`` or ``cpu``); ``None``: estimate."""
    steps: int = 4
    timeout: float = 600.0


def understand(runs: Sequence[BudgetedRun], file: str, *, models_too: bool = True) -> None:
    """Find everything the runs of a file name.

    Raises:
        UsageError: an unknown model, task, optimizer or GPU, with its line.
    """
    for run in runs:
        plan = run.plan
        key = "model"
        try:
            if models_too:
                source = models.find(plan.model)
                key = "task"
                tasks.choose(source, plan.task)
            key = "optim"
            registry.of(plan)
            key = "gpu"
            if plan.gpu is not None:
                gpus.find(plan.gpu)
        except MemcalcError as error:
            raise UsageError(f"{file}:{_line(run, key)}: {error}") from None
        except (OSError, TypeError, ValueError) as error:
            value = str(getattr(plan, key))[:40]
            message = f"{key} = {value!r} is not understood: {error}."
            raise UsageError(f"{file}:{_line(run, key)}: {message}") from None


def _line(run: BudgetedRun, key: str) -> int:
    return run.lines.get(key, run.where.line)


def estimate(runs: Sequence[BudgetedRun], effort: Effort) -> list[Evidence]:
    """Estimate every run; runs with the same plan are estimated once."""
    found: dict[tuple[str, str], Evidence] = {}
    for method in dict.fromkeys(run.method for run in runs):
        plans = {_key(run.plan): run.plan for run in runs if run.method == method}
        asked = list(plans.values())
        said = answers(asked, method=method, use_cache=effort.use_cache, workers=effort.workers)
        for key, answer in zip(plans, said, strict=True):
            found[method, key] = _evidence(answer, method)
    return [found[run.method, _key(run.plan)] for run in runs]


def _evidence(answer: Prediction | MemcalcError, method: str) -> Evidence:
    if isinstance(answer, MemcalcError):
        return Evidence(error=str(answer))
    if answer.method != method:
        # A figure of another kind, not this one.
        return Evidence(error=f"no answer by {method}: the one that was saved is {answer.method}")
    return Evidence(prediction=answer)


def measure(runs: Sequence[BudgetedRun], effort: Effort) -> list[Evidence]:
    """Train every run for real, one after the other, and put its estimate beside it."""
    from memcalc.measure.runs.runner import Request, Runner

    found: dict[str, Evidence] = {}
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
            except MemcalcError as error:
                # An estimate must not stand in for the measurement that was asked for.
                found[key] = Evidence(error=str(error))
                continue
            found[key] = Evidence(prediction=estimated.prediction, measurement=measured)
    return [found[_key(run.plan)] for run in runs]


def saved(runs: Sequence[BudgetedRun], files: Sequence[Path]) -> list[Evidence]:
    """Look every run up in results that memcalc wrote.

    Raises:
        UsageError: a file cannot be read, or holds no results.
    """
    known = {_key(result.plan): result for file in files for result in _results(file)}
    names = " and ".join(str(file) for file in files)
    return [_saved(run, known.get(_key(run.plan)), list(known.values()), names) for run in runs]


def _saved(run: BudgetedRun, result: Run | None, others: Sequence[Run], names: str) -> Evidence:
    if result is None:
        return _absent(run.plan, [other.plan for other in others], names)
    if result.measurement is None and result.prediction is not None:
        return _evidence(result.prediction, run.method)
    if result.measurement is None:
        return Evidence(error=result.error or f"{names} says nothing about this run")
    return Evidence(prediction=result.prediction, measurement=result.measurement)


def _results(file: Path) -> list[Run]:
    data = artifact.read(file)
    if data.get("kind") == "measurements":
        return load(file)
    return [Run(plan=found.plan, prediction=found) for found in predictions(data, file)]


def _key(plan: Plan) -> str:
    """One text for a plan, however its GPU is spelled and its arguments are ordered."""
    data = artifact.encode(plan)
    data["optim_args"] = sorted(data["optim_args"], key=str)
    if plan.gpu is not None:
        data["gpu"] = gpus.find(plan.gpu).name
    return json.dumps(data, sort_keys=True, default=str)


def _absent(plan: Plan, others: Sequence[Plan], names: str) -> Evidence:
    unlike = [[f for f in FIELDS if getattr(o, f) != getattr(plan, f)] for o in others]
    closest = min(unlike, key=len, default=[])
    beside = f"; the closest differs in {', '.join(closest)}" if 0 < len(closest) < 5 else ""
    return Evidence(error=f"{names} holds no result of this run{beside}")


def keep(runs: Sequence[BudgetedRun], found: Sequence[Evidence]) -> list[Run]:
    """The evidence in the form in which results are saved."""
    return [
        Run(
            plan=run.plan,
            prediction=evidence.prediction,
            measurement=evidence.measurement,
            error=evidence.error,
        )
        for run, evidence in zip(runs, found, strict=True)
    ]
