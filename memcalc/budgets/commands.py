"""Runs of a budget file that are a repository's own training scripts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from memcalc.budgets.records import BudgetedRun, Evidence
from memcalc.errors import MemcalcError
from memcalc.script.simulate import STEPS, simulate


def simulated(runs: Sequence[BudgetedRun]) -> dict[str, Evidence]:
    """Run each command in the folder of its budget file, on a simulated GPU.

    What scripts print goes to standard error. Nothing is kept: a script may have changed.

    Returns:
        What is known of each run, by its name.
    """
    return {run.name: _one(run) for run in runs}


def _one(run: BudgetedRun) -> Evidence:
    steps = STEPS if run.plan.steps is None else run.plan.steps
    folder = Path(run.where.file).resolve().parent
    try:
        found = simulate(replace(run.plan, steps=steps), folder)
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
        doubt = f"{run.name}: GPU memory ran out{at}"
    prediction = replace(found.traced.prediction, plan=run.plan)
    return Evidence(prediction=prediction, doubt=doubt)
