"""Measures plans in order and estimates each of them."""

from collections.abc import Collection, Generator, Iterator, Sequence
from typing import Protocol

from msgspec.structs import replace

from memcalc.catalog import gpus
from memcalc.errors import NO_GPU, MemcalcError, UsageError
from memcalc.estimation.estimate import answers
from memcalc.estimation.question import check, find_user_code
from memcalc.files.results import Run
from memcalc.measure.ranks import group
from memcalc.measure.runs.runner import Request, Runner
from memcalc.records.plan import Plan
from memcalc.records.prediction import Prediction
from memcalc.records.trace import PhaseReading
from memcalc.workload import layouts


class Watcher(Protocol):
    """An observer of a series of runs."""

    def begin(self, plan: Plan, number: int, count: int) -> None:
        """Observe the start of run ``number`` of ``count``."""
        ...

    def see_phase(self, reading: PhaseReading) -> None:
        """Observe the end of a phase of the run."""
        ...

    def end(self, run: Run) -> None:
        """Observe the end of a run."""
        ...

    def busy(self, what: str) -> None:
        """Observe that other work takes time; ``what`` names it."""
        ...

    def note(self, text: str) -> None:
        """Show a text to the user."""
        ...


def measure_all(requests: Sequence[Request], watcher: Watcher) -> Generator[Run, None, None]:
    """Measure runs, each in a new child process, and yield them; a failure is an error in its run.

    If a run finds no GPU, later runs on a GPU are skipped.
    """
    with Runner() as runner:
        missing = False
        for number, request in enumerate(requests):
            if missing and request.device == "cuda":
                continue
            watcher.begin(request.plan, number, len(requests))
            run = _measure_one(runner, request, watcher)
            watcher.end(run)
            missing = missing or run.error == NO_GPU
            yield run


def _measure_one(runner: Runner, request: Request, watcher: Watcher) -> Run:
    """Measure one run, or all ranks of it; an error becomes the run's error."""
    plan = request.plan
    try:
        check(plan)
        world = layouts.spread(plan).world
        if world > 1:
            return group.measure(runner, request, world, watcher.see_phase)
        return Run(plan=plan, measurement=runner.measure(request, watcher.see_phase))
    except MemcalcError as error:
        return Run(plan=plan, error=str(error))


def estimate_all(
    runs: Sequence[Run], watcher: Watcher, typed: Collection[Plan] = ()
) -> Iterator[tuple[int, Run]]:
    """Estimate every measured run that has no estimate; yield each run's index and the new run.

    Estimates start after the last run: both would compete for the processor, and a model that hangs
    has shown it by then. ``typed``: plans that a person typed; the user's code in other plans is
    not run.
    """
    parts, asked = [], []
    for number, whole in enumerate(runs):
        for place, run in enumerate(whole.ranks or (whole,)):
            plan = _plan_to_estimate(run, watcher, whole.plan in typed)
            if plan is not None:
                parts.append((number, place))
                asked.append(plan)
    found: dict[int, Run] = {}
    for (number, place), answer in zip(parts, answers(asked), strict=True):
        run = found.get(number, runs[number])
        watcher.busy(f"estimating {run.plan.model} {run.plan.optim}")
        if isinstance(answer, MemcalcError):
            watcher.note(f"no estimate of {run.plan.model}: {answer}")
        else:
            found[number] = _add_estimate(run, place, answer)
            yield number, found[number]


def _plan_to_estimate(run: Run, watcher: Watcher, typed: bool) -> Plan | None:
    """Return the plan to estimate for a run, on its GPU and PyTorch; None if it needs no estimate.

    It is also None, with a note to the watcher, if memcalc cannot or must not estimate the run.
    """
    if run.measurement is None or run.prediction is not None:
        return None
    measured, plan = run.measurement, run.measurement.plan
    code = find_user_code(plan)
    if code is not None and not typed:
        watcher.note(f"no estimate of {code}: it is code, which a file cannot have run")
        return None
    # The same device and PyTorch as measured.
    version = measured.versions.get("torch", "").split("+")[0] or None
    gpu = plan.gpu if plan.target != "cpu" else None
    if plan.target != "cpu" and gpu is None:
        try:
            gpu = gpus.find(measured.device, measured.device_total).name
        except UsageError as error:
            watcher.note(f"no estimate of {plan.model}: {error}")
            return None
    return replace(plan, gpu=gpu, torch=version, rank=run.plan.rank)


def _add_estimate(run: Run, place: int, answer: Prediction) -> Run:
    """Return the run with an estimate added, to the run itself or to its rank at ``place``."""
    if not run.ranks:
        return replace(run, prediction=answer)
    ranks = list(run.ranks)
    ranks[place] = replace(ranks[place], prediction=answer)
    stands = ranks[place].measurement == run.measurement
    headline = answer if stands and run.prediction is None else run.prediction
    return replace(run, ranks=tuple(ranks), prediction=headline)
