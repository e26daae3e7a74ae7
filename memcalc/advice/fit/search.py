"""Finds the largest size that fits with few questions, each one a run over the stub driver."""

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from msgspec.structs import replace

from memcalc.advice.fit.records import Probe
from memcalc.catalog import positions
from memcalc.estimation.answers import Answers
from memcalc.estimation.engine import Judged
from memcalc.estimation.fits import Device, margin
from memcalc.records.plan import Plan
from memcalc.records.prediction import Fit, FitVerdict

T = TypeVar("T")


class Oracle:
    """Answers for one program on any device; what it learns is kept for the next question.

    Threads may share it. ``config``: the model's, where it has one.
    """

    def __init__(self, answers: Answers, config: dict[str, Any] | None) -> None:
        self._answers = answers
        self._config = config
        self._lock = threading.Lock()
        self._known: dict[tuple[Plan, tuple[Device, ...]], Judged] = {}
        self.traces = 0
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
            self.traces += 1
            self.assumptions, self.uncounted = answer.assumptions, answer.uncounted
            self._known[plan, devices] = answer
        return answer


Ask = Callable[[int], Probe | None]
"""Answers for a size; ``None``: the model takes no such size."""
Accept = Callable[[Probe | None], bool]


_ROUND = 8
_ISLANDS = 8
"""So many multiples of ``_ROUND`` are tried."""


def fits(probe: Probe | None) -> bool:
    """It fits."""
    return probe is not None and probe.fit.fits


def may_fit(probe: Probe | None) -> bool:
    """It fits, or it is tight."""
    return probe is not None and probe.fit.verdict is not FitVerdict.DOES_NOT_FIT


def largest(ask: Ask, accept: Accept, *, start: int, limit: int) -> int:
    """The size that is accepted while the next one is not; 0 where the first is not.

    Sizes are counted 1, 2, 3 and so on; ``ask`` is asked twice about some, and should remember.
    The next guess lies where a straight line through the two sizes that enclose the answer
    meets the capacity, and as far from the size it was held against last as that has moved,
    twice as far each time: a straight line is off by little, and a crooked one costs little.
    Where the size that fits fills the device, there is no such line, and the middle is tried.
    """
    low, high = _enclose(ask, accept, min(start, limit), limit)
    gap, accepted = 1, None
    while high - low > 1:
        # Where the GPU is full, what is reserved says nothing of how much more fits.
        full = low > 0 and (there := ask(low)) is not None and there.fit.retries > 0
        if low == 0 or high > limit or 2 * gap >= high - low or full:
            guess = (low + high) // 2
        else:
            guess = min(max(_line(ask, low, high), low + gap), high - gap)
        last, accepted = accepted, accept(ask(guess))
        gap = 2 * gap if accepted is last else 1
        if accepted:
            low = guess
        else:
            high = guess
    return low


def beyond(ask: Ask, accept: Accept, best: int, limit: int) -> int:
    """The same where the answer lies a little above a size that is accepted.

    From the next size on it goes by round ones, which ``islands`` has asked about.
    """
    low, step = best, 1
    while low < limit:
        size = min(low + step, limit)
        if not accept(ask(size)):
            return largest(ask, accept, start=low, limit=size - 1) if size > low + 1 else low
        low, step = size, _ROUND - size % _ROUND if size < best + _ISLANDS * _ROUND else 2 * step
    return low


def islands(ask: Ask, best: int, limit: int) -> int:
    """The largest size that fits among the next round ones; ``best`` where none does.

    The allocator hands out blocks of 2 MiB and more, so sizes that fill them whole can fit where
    smaller ones do not.
    """
    first = best - best % _ROUND + _ROUND
    for size in range(first + (_ISLANDS - 1) * _ROUND, best, -_ROUND):
        if size <= limit and fits(ask(size)):
            return size
    return best


def _enclose(ask: Ask, accept: Accept, start: int, limit: int) -> tuple[int, int]:
    """A size that is accepted (or 0), and a larger one that is not (or lies beyond the limit)."""
    if not accept(ask(start)):
        return 0, start
    low, size = start, start
    while size < limit:
        size = min(max(size * 2, _reach(ask, start, low)), limit)
        if not accept(ask(size)):
            return low, size
        low = size
    return low, limit + 1


def _reach(ask: Ask, start: int, low: int) -> int:
    """A little beyond where a line through two accepted sizes meets the capacity."""
    if low == start:
        return 0
    first, second = ask(start), ask(low)
    assert first is not None
    assert second is not None
    slope = (second.fit.most - first.fit.most) / (low - start)
    room = _room(second.fit)
    return low + int(room / slope * 1.02) + 1 if slope > 0 else 0


def _line(ask: Ask, low: int, high: int) -> int:
    lower, upper = ask(low), ask(high)
    share = 0.5
    if lower is not None and upper is not None:
        rise = upper.fit.most - lower.fit.most
        share = _room(lower.fit) / rise if rise > 0 else share
    return min(max(low + round(share * (high - low)), low + 1), high - 1)


def _room(fit: Fit) -> int:
    """Bytes that may be added until it is tight."""
    return fit.least_margin - margin(fit.capacity)
