"""Runs one program in many sizes, each once, and sees which devices it fits."""

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from msgspec.structs import replace

from memcalc.advice.fit.records import Probe
from memcalc.catalog import positions
from memcalc.estimation.answers import Answers
from memcalc.estimation.engine import Judged
from memcalc.estimation.fits import Device
from memcalc.records.plan import Plan
from memcalc.records.prediction import FitVerdict

T = TypeVar("T")


class Runs:
    """Exact runs of one program on any device; each is kept for the next question.

    Threads may share it. ``config``: the model's, where it has one.
    """

    def __init__(self, answers: Answers, config: dict[str, Any] | None) -> None:
        self._answers = answers
        self._config = config
        self._lock = threading.Lock()
        self._known: dict[tuple[Plan, tuple[Device, ...]], Judged] = {}
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
        return list(self._answers.side_by_side(lambda job: job(), jobs))

    def as_known(self, jobs: Sequence[Callable[[], T]]) -> Iterator[T]:
        """Answer several questions at once; each answer comes as soon as it is known.

        Raises:
            MemcalcError: one could not be answered.
        """
        return self._answers.as_known(jobs)

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
        for _ in self._answers.side_by_side(one, order):
            pass
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
        answer = self._answers.judge(plan, devices)
        with self._lock:
            self.count += 1
            self.assumptions, self.uncounted = answer.assumptions, answer.uncounted
            self._known[plan, devices] = answer
        return answer
