"""Measures plans in order and puts an estimate beside each: where both sides meet."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator, Sequence
from typing import Protocol

import msgspec
from msgspec.structs import replace

from memcalc.catalog import gpus
from memcalc.errors import MemcalcError, UsageError
from memcalc.estimation.estimate import answers
from memcalc.estimation.question import code_in
from memcalc.estimation.understand import check
from memcalc.files.results import Run
from memcalc.measure.runs.runner import Request, Runner
from memcalc.records.measurement import Measurement, PhaseReading
from memcalc.records.plan import Plan
from memcalc.workload import layouts


class How(msgspec.Struct, frozen=True, kw_only=True):
    """How to measure all plans."""

    steps: int = 4
    timeout: float = 600.0
    weights: bool = False
    snapshot: str | None = None


class Watcher(Protocol):
    """Somebody who follows the runs."""

    def begins(self, plan: Plan, number: int, count: int) -> None:
        """A run starts."""
        ...

    def said(self, reading: PhaseReading) -> None:
        """A phase of the run has ended."""
        ...

    def ended(self, run: Run) -> None:
        """A run has ended."""
        ...

    def busy(self, what: str) -> None:
        """Something else takes time now."""
        ...

    def note(self, text: str) -> None:
        """Something that a person should know."""
        ...


def measure_all(plans: Sequence[Plan], how: How, watcher: Watcher) -> Generator[Run, None, None]:
    """Measure plans, each in a child process of its own; one that fails is an error in its run.

    Args:
        plans: what to measure; ``target`` says on which device.
        how: the same for all.
        watcher: told of everything as it happens.
    """
    with Runner() as runner:
        for number, plan in enumerate(plans):
            watcher.begins(plan, number, len(plans))
            run = _measure(runner, plan, how, watcher)
            watcher.ended(run)
            yield run


def _measure(runner: Runner, plan: Plan, how: How, watcher: Watcher) -> Run:
    world = layouts.spread(plan).world
    if world > 1:
        said = f"Measuring {world} GPUs at once is not built yet: measure a plan of one."
        return Run(plan=plan, error=said)
    request = Request(
        plan=plan,
        device=plan.target,
        steps=how.steps,
        timeout=how.timeout,
        weights=how.weights,
        snapshot=how.snapshot,
    )
    try:
        check(plan)
        return Run(plan=plan, measurement=runner.measure(request, watcher.said))
    except MemcalcError as error:
        return Run(plan=plan, error=str(error))


def estimate_all(
    runs: Sequence[Run], watcher: Watcher, typed: Collection[Plan] = ()
) -> Iterator[tuple[int, Run]]:
    """Put an estimate beside every measured run that has none; yields its index and the run.

    All are made in one go after the last run: the two would fight for the processor, and a model
    that hangs has shown it by then.

    Args:
        runs: measured now, or read from a file.
        watcher: told of everything as it happens.
        typed: plans that a person asked for; code that other plans name is not run.
    """
    numbers, asked = [], []
    for number, run in enumerate(runs):
        if run.measurement is not None and run.prediction is None:
            code = code_in(run.measurement.plan)
            if code is not None and run.plan not in typed:
                watcher.note(f"no estimate of {code}: it is code, which a file cannot have run")
                continue
            plan = _asked(run.measurement, watcher)
            if plan is not None:
                numbers.append(number)
                asked.append(plan)
    for number, answer in zip(numbers, answers(asked), strict=True):
        watcher.busy(f"estimating {runs[number].plan.model} {runs[number].plan.optim}")
        if isinstance(answer, MemcalcError):
            watcher.note(f"no estimate of {runs[number].plan.model}: {answer}")
        else:
            yield number, replace(runs[number], prediction=answer)


def _asked(measured: Measurement, watcher: Watcher) -> Plan | None:
    """The plan for the very device and PyTorch that measured; ``None``: memcalc has no such GPU."""
    plan = measured.plan
    version = measured.versions.get("torch", "").split("+")[0] or None
    if plan.target == "cpu":
        return replace(plan, gpu=None, torch=version)
    try:
        gpu = plan.gpu or gpus.find(measured.device, measured.device_total).name
    except UsageError as error:
        watcher.note(f"no estimate of {plan.model}: {error}")
        return None
    return replace(plan, gpu=gpu, torch=version)
