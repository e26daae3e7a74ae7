"""Runs one program in many sizes, each once, and sees which devices it fits."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from typing import Any, TypeVar

from msgspec.structs import replace

from memcalc.advice.fit.records import Probe
from memcalc.catalog import positions
from memcalc.errors import MemcalcError
from memcalc.estimation.client import Judged
from memcalc.estimation.fits import Device
from memcalc.estimation.pool import Pool
from memcalc.records.plan import Plan
from memcalc.records.prediction import FitVerdict

T = TypeVar("T")


class Runs:
    """Exact runs of one program on any device; each is kept for the next question.

    Threads may share it. ``config``: the model's, where it has one.
    """

    def __init__(self, pool: Pool, config: dict[str, Any] | None) -> None:
        self._pool = pool
        self._config = config
        self._lock = threading.Lock()
        self._known: dict[tuple[Plan, tuple[Device, ...]], Judged] = {}
        self._stopped = threading.Event()
        self.count = 0
        self.assumptions: tuple[str, ...] = ()
        """Of the last run that answered."""
        self.uncounted: tuple[str, ...] = ()
        """The same: what it did not count."""

    def probe(self, plan: Plan, device: Device) -> Probe:
        """Does this plan fit this device?

        Raises:
            MemcalcError: it could not be estimated.
        """
        found = self.judged(plan, (device,))
        return Probe(batch=plan.batch, seq=found.seq, fit=found.fits[0])

    def each(self, jobs: Sequence[Callable[[], T]]) -> list[T]:
        """Answer several questions at once.

        Raises:
            MemcalcError: one could not be answered.
        """
        with self._threads() as threads:
            return [one.result() for one in [threads.submit(job) for job in jobs]]

    def as_known(self, jobs: Sequence[Callable[[], T]]) -> Iterator[T]:
        """Answer several questions at once; each answer comes as soon as it is known.

        Raises:
            MemcalcError: one could not be answered.
        """
        with self._threads() as threads:
            for one in as_completed([threads.submit(job) for job in jobs]):
                yield one.result()

    @contextmanager
    def _threads(self) -> Iterator[ThreadPoolExecutor]:
        """Lend the pool's threads; after Ctrl-C none of them takes a killed run for an answer."""
        with self._pool.threads() as threads:
            try:
                yield threads
            except KeyboardInterrupt:
                self._stopped.set()
                raise

    def table(self, plans: Sequence[Plan], device: Device) -> list[Probe]:
        """Probe plans that differ in batch and sequence only, small ones first.

        What is at least as large as one that does not fit is not run: its ``fit`` is that one's,
        and its ``fit.metric`` is then ``allocated``, for the least that it needs.

        Raises:
            MemcalcError: one could not be estimated.
        """
        found: dict[int, Probe] = {}
        too_large: list[tuple[Plan, Probe]] = []

        def one(index: int) -> None:
            plan = plans[index]
            for other, probe in list(too_large):
                if plan.batch >= other.batch and (plan.seq or 0) >= (other.seq or 0):
                    found[index] = Probe(
                        batch=plan.batch,
                        seq=plan.seq,
                        fit=replace(probe.fit, metric="allocated", needed_high=None, retries=0),
                    )
                    return
            found[index] = self.probe(plan, device)
            if found[index].fit.verdict is FitVerdict.DOES_NOT_FIT:
                too_large.append((plan, found[index]))

        order = sorted(range(len(plans)), key=lambda n: plans[n].batch * (plans[n].seq or 1))
        with self._threads() as threads:
            for done in [threads.submit(one, index) for index in order]:
                done.result()
        return [found[index] for index in range(len(plans))]

    def longest(self, plan: Plan) -> int | None:
        """The longest sequence the model takes; ``None``: no limit is known."""
        if self._config is None:
            return None
        named = positions.lengths(self._config).longest
        return named - (plan.generate or 1) + 1 if named is not None else None

    def judged(self, plan: Plan, devices: tuple[Device, ...]) -> Judged:
        """Does this plan fit each of these devices, whose kernels are those of the plan's GPU?

        Raises:
            MemcalcError: it could not be estimated.
        """
        with self._lock:
            known = self._known.get((plan, devices))
        if known is not None:
            return known
        with self._pool.client() as client:
            if self._stopped.is_set():
                raise CancelledError
            answer = client.judged(plan, devices)
        if self._stopped.is_set():
            raise CancelledError
        if isinstance(answer, MemcalcError):
            raise answer
        with self._lock:
            self.count += 1
            self.assumptions, self.uncounted = answer.assumptions, answer.uncounted
            self._known[plan, devices] = answer
        return answer
