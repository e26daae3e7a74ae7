"""Runs a plan in several processes and collects the answers of all ranks.

Each rank is a child process, like any measured run. A rank that fails ends the others; phases that
they had reported are kept.
"""

import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from memcalc.children.client import ForkServer
from memcalc.errors import MeasureError, UsageError, took_too_long
from memcalc.files.results import Run
from memcalc.measure.runs.runner import Request, Runner, RunWatch
from memcalc.records.measurement import Measurement, steady_peak
from memcalc.records.plan import Plan
from memcalc.records.prediction import ALLOCATOR_RUNGS
from memcalc.records.trace import PhaseReading
from memcalc.workload import layouts

_GRACE = 1.0
"""Seconds that other ranks get to report their own errors after one has failed."""


class Member:
    """A rank: the phases it reported, and how it ended."""

    def __init__(
        self, rank: int, world: int, device: str, on_phase: Callable[[PhaseReading], None]
    ) -> None:
        self.rank = rank
        self.name = f"run (rank {rank} of {world})"
        self.measurement: Measurement | None = None
        self.error: str | None = None
        """The error that it reported, or a sentence on how it ended."""
        self.died = False
        """True if it ended without an answer."""
        self.deserted = False
        """True if it failed because other ranks were gone."""
        self.unwanted = False
        """True if it was ended because another rank had failed."""
        self.reached: list[PhaseReading] = []
        self.left = 0.0
        """When it ended or answered, by the monotonic clock."""

        def keep_phase(reading: PhaseReading) -> None:
            self.reached.append(reading)
            on_phase(reading)

        self._watch = RunWatch(self.name, device, keep_phase)

    @property
    def place(self) -> str:
        """The last phase that it reported, as the end of a sentence."""
        if not self.reached:
            return " before its first phase"
        last = self.reached[-1]
        return f" after {last.phase.value} of step {last.step + 1}"

    def run(self, server: ForkServer, request: Request, where: dict[str, Any]) -> None:
        """Run the rank to its end in a child process and keep its measurement.

        Raises:
            TimeoutError: it took too long.
            UsageError: the plan cannot be run.
            MeasureError: it failed, so the other ranks cannot go on.
        """
        try:
            module = "memcalc.measure.ranks.rank"
            answer = self._watch.ask(server, module, request, **where, rank=self.rank)
            if "deserted" in answer:
                self.deserted = True
                raise MeasureError(answer["deserted"])
            self.measurement = self._watch.measurement(answer)
            if self.measurement.out_of_memory is not None:
                raise MeasureError(f"The {self.name} ran out of memory.")
        except MeasureError as error:
            if self.measurement is None and not self.unwanted:
                self.error = str(error)
                self.died = isinstance(error.__cause__, ChildProcessError)
            raise
        finally:
            self.left = time.monotonic()

    def close(self) -> None:
        """Stop sampling its GPU."""
        self._watch.close()


def measure(
    runner: Runner, request: Request, world: int, on_phase: Callable[[PhaseReading], None]
) -> Run:
    """Measure one plan on several devices of this machine.

    The run's measurement is the one of the rank that needs most memory.

    Raises:
        MeasureError: no process can be started.
        UsageError: the plan cannot be run.
    """
    members = [
        Member(rank, world, request.device, on_phase if rank == 0 else lambda reading: None)
        for rank in range(world)
    ]
    try:
        errors = _run(runner, request, members)
    finally:
        for one in members:
            one.close()
    if wrong := next((error for error in errors if isinstance(error, UsageError)), None):
        raise wrong
    trouble = first_failure(members)
    if any(isinstance(error, TimeoutError) for error in errors):
        trouble = took_too_long("run", request.timeout, list_waiting_ranks(members))
    return _combine_ranks(request.plan, members, trouble)


def _run(runner: Runner, request: Request, members: Sequence[Member]) -> list[BaseException | None]:
    """Run all ranks to their end, or end them all when one fails; return the error of each."""
    server = runner.server(request.plan)
    with (
        tempfile.TemporaryDirectory(prefix="memcalc-ranks-") as folder,
        ThreadPoolExecutor(len(members)) as threads,
    ):
        where = {"world": len(members), "store": str(Path(folder, "store"))}
        runs = [threads.submit(one.run, server, request, where) for one in members]
        try:
            wait(runs, return_when=FIRST_EXCEPTION)
            wait(runs, timeout=_GRACE)
            return [run.exception() if run.done() else None for run in runs]
        finally:
            left = [one for one, run in zip(members, runs, strict=True) if not run.done()]
            for one in left:
                one.unwanted = True
            if left:
                runner.close()


def first_failure(members: Sequence[Member]) -> str | None:
    """Return the error of the rank that failed first.

    Returns None if all ranks succeeded, or all ran out of memory.
    """
    measured = [one for one in members if one.measurement is not None]
    short = [one for one in measured if one.measurement and one.measurement.out_of_memory]
    if short:
        return None if len(short) == len(members) else f"The {short[0].name} ran out of memory."
    failed = [one for one in members if one.error is not None]
    if not failed:
        return None
    # Prefer a rank that reported an error, then one that just ended, to one that lost another.
    spoke = [one for one in failed if not one.died and not one.deserted]
    died = [one for one in failed if one.died]
    blamed = min(spoke or died or failed, key=lambda one: one.left)
    return f"Rank {blamed.rank} of {len(members)}{blamed.place}: {blamed.error}"


def list_waiting_ranks(members: Sequence[Member]) -> str:
    """Return the last phase of each rank that has not finished, as a list in a sentence."""
    waiting = [one for one in members if one.measurement is None]
    return ", ".join(f"rank {one.rank}{one.place}" for one in waiting) or "all ranks through"


def _combine_ranks(plan: Plan, members: Sequence[Member], trouble: str | None) -> Run:
    """Join the ranks' runs to one, with the measurement of the rank that needs most."""
    ranks = tuple(
        Run(
            plan=replace(plan, rank=one.rank),
            measurement=one.measurement,
            error=one.error or trouble if one.measurement is None else None,
            reached=() if one.measurement is not None else tuple(one.reached),
        )
        for one in members
    )
    measured = (
        max(ranks, key=_memory_rank)
        if plan.rank in (None, "all")
        else ranks[layouts.chosen_rank(plan.rank, len(ranks))]
    ).measurement
    if trouble is not None and measured is not None and measured.out_of_memory is None:
        measured = None
    return Run(plan=plan, measurement=measured, error=trouble, ranks=ranks)


def _memory_rank(one: Run) -> tuple[bool, bool, tuple[int, ...]]:
    """Return the sort key of a rank by memory: out of memory is highest, then the peak."""
    if (measured := one.measurement) is None:
        return False, False, ()
    peaks = (steady_peak(measured, rung) for rung in reversed(ALLOCATOR_RUNGS))
    levels = tuple(level or 0 for level in (measured.process_used, *peaks))
    return True, measured.out_of_memory is not None, levels
