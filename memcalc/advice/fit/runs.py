"""Runs one program in many sizes, each once, and tells which devices it fits."""

import threading
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from memcalc.advice.fit.records import Probe
from memcalc.catalog import positions
from memcalc.estimation.answers import Answers
from memcalc.estimation.engine import Judged
from memcalc.estimation.fits import Device
from memcalc.records.plan import Plan
from memcalc.records.prediction import FitVerdict


class Runs:
    """Exact runs of one program on any device; each is kept for the next question.

    Threads may share it. ``config``: the model's, where it has one.
    """

    def __init__(self, answers: Answers, config: dict[str, Any] | None) -> None:
        self.answers = answers
        self._config = config
        self._lock = threading.Lock()
        self._known: dict[tuple[Plan, tuple[Device, ...]], Judged] = {}
        self.count = 0
        self.assumptions: tuple[str, ...] = ()
        """Assumptions of the last run that answered."""
        self.uncounted: tuple[str, ...] = ()
        """What it did not count."""

    def probe(self, plan: Plan, device: Device) -> Probe:
        """Tell whether a plan fits a device.

        Raises:
            MemcalcError: it could not be estimated.
        """
        found = self.judge(plan, (device,))
        return Probe(batch=plan.batch, seq=found.seq, fit=found.fits[0])

    def table(self, plans: Sequence[Plan], device: Device) -> list[Probe]:
        """Probe plans that differ in batch and sequence only, small ones first.

        A plan at least as large as one that does not fit is not run: its ``fit`` is the smaller
        one's, with ``allocated`` as its ``fit.metric``, for the least that it needs.

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
        for _ in self.answers.side_by_side(one, order):
            pass
        return [found[index] for index in range(len(plans))]

    def longest(self, plan: Plan) -> int | None:
        """Return the longest sequence the model takes, or None if no limit is known."""
        if self._config is None:
            return None
        named = positions.lengths(self._config).longest
        return named - (plan.generate or 1) + 1 if named is not None else None

    def judge(self, plan: Plan, devices: tuple[Device, ...]) -> Judged:
        """Tell whether a plan fits each of these devices, all with the kernels of the plan's GPU.

        Raises:
            MemcalcError: it could not be estimated.
        """
        with self._lock:
            known = self._known.get((plan, devices))
        if known is not None:
            return known
        answer = self.answers.judge(plan, devices)
        with self._lock:
            self.count += 1
            self.assumptions, self.uncounted = answer.assumptions, answer.uncounted
            self._known[plan, devices] = answer
        return answer
