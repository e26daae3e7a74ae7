"""Runs a plan in several processes and collects the answers of all ranks.

Each rank is a child as that of any run. One that fails ends the others; whatever they had said is
kept.
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

_TIME_TO_TELL = 1.0
"""Seconds in which the others may say what went wrong, once a rank has failed."""


class Member:
    """A rank: what it has said, and how it ended."""

    def __init__(
        self, rank: int, world: int, device: str, said: Callable[[PhaseReading], None]
    ) -> None:
        self.rank = rank
        self.name = f"run (rank {rank} of {world})"
        self.measurement: Measurement | None = None
        self.error: str | None = None
        """What it said itself, or what is said of how it ended."""
        self.died = False
        """It ended without an answer of its own."""
        self.deserted = False
        """It failed because others were gone."""
        self.unwanted = False
        """It was ended because another one had failed."""
        self.reached: list[PhaseReading] = []
        self.left = 0.0
        """When it was gone or had answered, by the monotonic clock."""

        def reached(reading: PhaseReading) -> None:
            self.reached.append(reading)
            said(reading)

        self._watch = RunWatch(self.name, device, reached)

    @property
    def place(self) -> str:
        """Where it was last heard of."""
        if not self.reached:
            return " before its first phase"
        last = self.reached[-1]
        return f" after {last.phase.value} of step {last.step + 1}"

    def run(self, server: ForkServer, request: Request, where: dict[str, Any]) -> None:
        """Have it train to its end.

        Raises:
            TimeoutError: it took too long.
            UsageError: the plan cannot be run.
            MeasureError: the others cannot go on without it.
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
        """Stop reading its GPU."""
        self._watch.close()


def measure(
    runner: Runner, request: Request, world: int, said: Callable[[PhaseReading], None]
) -> Run:
    """Measure one plan on several devices of this machine; the rank that needs most stands for all.

    Raises:
        MeasureError: no process can be started.
        UsageError: the plan cannot be run.
    """
    members = [
        Member(rank, world, request.device, said if rank == 0 else lambda reading: None)
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
        trouble = took_too_long("run", request.timeout, where_they_are(members))
    return _of_all(request.plan, members, trouble)


def _run(runner: Runner, request: Request, members: Sequence[Member]) -> list[BaseException | None]:
    """Run all ranks to their end; what each raised before others were ended for it."""
    server = runner.server(request.plan)
    with (
        tempfile.TemporaryDirectory(prefix="memcalc-ranks-") as folder,
        ThreadPoolExecutor(len(members)) as threads,
    ):
        where = {"world": len(members), "store": str(Path(folder, "store"))}
        runs = [threads.submit(one.run, server, request, where) for one in members]
        try:
            wait(runs, return_when=FIRST_EXCEPTION)
            wait(runs, timeout=_TIME_TO_TELL)
            return [run.exception() if run.done() else None for run in runs]
        finally:
            left = [one for one, run in zip(members, runs, strict=True) if not run.done()]
            for one in left:
                one.unwanted = True
            if left:
                runner.close()


def first_failure(members: Sequence[Member]) -> str | None:
    """What the rank says or is said of that failed by itself; ``None``: none did."""
    measured = [one for one in members if one.measurement is not None]
    short = [one for one in measured if one.measurement and one.measurement.out_of_memory]
    if short:
        return None if len(short) == len(members) else f"The {short[0].name} ran out of memory."
    failed = [one for one in members if one.error is not None]
    if not failed:
        return None
    # A rank that says what went wrong beats one that just ended, and both one that lost another.
    spoke = [one for one in failed if not one.died and not one.deserted]
    died = [one for one in failed if one.died]
    blamed = min(spoke or died or failed, key=lambda one: one.left)
    return f"Rank {blamed.rank} of {len(members)}{blamed.place}: {blamed.error}"


def where_they_are(members: Sequence[Member]) -> str:
    """Where those that are not through were last heard of."""
    waiting = [one for one in members if one.measurement is None]
    return ", ".join(f"rank {one.rank}{one.place}" for one in waiting) or "all ranks through"


def _of_all(plan: Plan, members: Sequence[Member], trouble: str | None) -> Run:
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
        max(ranks, key=_need)
        if plan.rank in (None, "all")
        else ranks[layouts.chosen_rank(plan.rank, len(ranks))]
    ).measurement
    if trouble is not None and measured is not None and measured.out_of_memory is None:
        measured = None
    return Run(plan=plan, measurement=measured, error=trouble, ranks=ranks)


def _need(one: Run) -> tuple[bool, bool, tuple[int, ...]]:
    """What orders ranks by what they need: out of memory is most, then the highest peak."""
    if (measured := one.measurement) is None:
        return False, False, ()
    peaks = (steady_peak(measured, rung) for rung in reversed(ALLOCATOR_RUNGS))
    levels = tuple(level or 0 for level in (measured.process_used, *peaks))
    return True, measured.out_of_memory is not None, levels
