"""Runs one program in many sizes, each once, and tells which devices it fits."""

import threading
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from memcalc.advice.fit.records import Probe
from memcalc.catalog import positions
from memcalc.estimation.answers import Answers
from memcalc.estimation.engine import JudgedRun
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
        self._known: dict[tuple[Plan, tuple[Device, ...]], JudgedRun] = {}
        self.last: JudgedRun | None = None
        """The last run that answered."""

    @property
    def count(self) -> int:
        """The number of runs."""
        return len(self._known)

    def judge(self, plan: Plan, devices: tuple[Device, ...]) -> JudgedRun:
        """Tell whether a plan fits each of these devices, all with the kernels of the plan's GPU.

        Raises:
            MemcalcError: it could not be estimated.
        """
        found = self._known.get((plan, devices))
        if found is None:
            found = self.answers.judge(plan, devices)
            with self._lock:
                self.last = self._known[plan, devices] = found
        return found

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
        found: dict[Plan, Probe] = {}
        too_large: list[tuple[Plan, Probe]] = []

        def probe_one(plan: Plan) -> None:
            for other, probe in list(too_large):
                if plan.batch >= other.batch and (plan.seq or 0) >= (other.seq or 0):
                    fit = replace(probe.fit, metric="allocated", needed_high=None, retries=0)
                    found[plan] = Probe(batch=plan.batch, seq=plan.seq, fit=fit)
                    return
            found[plan] = self.probe(plan, device)
            if found[plan].fit.verdict is FitVerdict.DOES_NOT_FIT:
                too_large.append((plan, found[plan]))

        by_size = sorted(plans, key=lambda plan: plan.batch * (plan.seq or 1))
        list(self.answers.map_parallel(probe_one, by_size))
        return [found[plan] for plan in plans]

    def longest(self, plan: Plan) -> int | None:
        """Return the longest sequence the model takes, or None if no limit is known."""
        if self._config is None:
            return None
        named = positions.lengths(self._config).longest
        return named - (plan.generate or 1) + 1 if named is not None else None
