"""Finds the smallest card for each way to train a model.

Cards are those that clouds rent, those that a user has prices of, or all. One stands for all of a
size: that which offers a process least memory, among those that compute in bfloat16 where the size
has any. A plan is run on the card it is said to fit, and on the next smaller one, which it does
not. Where one card is too few, 2, 4 and 8 of them share the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from msgspec.structs import replace

from memcalc.advice.remedies.goals import needed
from memcalc.advice.remedies.records import Change, figures
from memcalc.advice.remedies.rows.slower import SHARDED
from memcalc.advice.remedies.trials import changed
from memcalc.advice.suggest.records import Card, Cards, Way
from memcalc.advice.suggest.speed import speed
from memcalc.advice.suggest.strategies import ways
from memcalc.advice.suggest.suggest import COUNTS, Floor, check_trains
from memcalc.catalog import gpus
from memcalc.catalog.capabilities import ARCHITECTURES
from memcalc.catalog.gpus import Gpu
from memcalc.errors import MemcalcError, UsageError
from memcalc.estimation.estimate import Tracer
from memcalc.estimation.fits import device_of, hopeless
from memcalc.records.plan import Plan
from memcalc.records.prediction import FitVerdict, Prediction

PIECES = 8
"""Micro-batches that a batch is cut into at most."""
_OLDEST = (7, 5)
"""Compute capability that PyTorch's builds for CUDA 13 begin with (its release notes of 2.9)."""


def cards(
    plan: Plan,
    *,
    among: Iterable[Gpu] | None = None,
    use_cache: bool = True,
    seen: Callable[[Card, int], None] = lambda one, count: None,
) -> Cards:
    """Find the smallest card for each way to train a plan's model.

    Args:
        plan: what is trained; it names no GPU.
        among: cards to choose from; ``None``: those that clouds rent.
        use_cache: keep and reuse traces on disk.
        seen: told each answer as soon as it is known, and how many there will be.

    Raises:
        UsageError: the plan cannot be understood, or there is no card that PyTorch runs on.
    """
    check_trains(plan)
    sizes = list(_one_of_each_size(gpus.rented() if among is None else among))
    if not sizes:
        raise UsageError("PyTorch's builds run on none of these GPUs: name newer ones.")
    floor = Floor(plan)
    tried = list(ways(replace(plan, gpu=sizes[-1].name)))
    found: list[Card] = []

    def told(card: Card) -> None:
        found.append(card)
        seen(card, 2 * len(tried))

    with Tracer(use_cache=use_cache, workers=None, counted=True) as tracer:
        _answer([_Search(plan, way, False, sizes, floor) for way in tried], tracer, told)
        # Who fits the smallest card as it is needs nothing leaner.
        done = {one.way.key for one in found if one.gpu == sizes[0].name}
        lean = [_Search(plan, way, True, sizes, floor) for way in tried if way.key not in done]
        _answer(lean, tracer, told)
    order = [way.key for way in tried]
    found.sort(key=lambda one: (order.index(one.way.key), one.lean))
    if all(one.error is not None for one in found):
        raise UsageError(found[0].error or "Nothing can be tried.")
    return Cards(plan=plan, found=tuple(found))


def _answer(searches: Sequence[_Search], tracer: Tracer, told: Callable[[Card], None]) -> None:
    """Take searches to their ends, a question of each side by side."""
    while open_ones := [one for one in searches if one.card is None]:
        plans = [one.question() for one in open_ones]
        answers = tracer.answers([p for p in plans if isinstance(p, Plan)])
        for one, asked in zip(open_ones, plans, strict=True):
            one.learn(next(answers) if isinstance(asked, Plan) else asked)
            if one.card is not None:
                told(one.card)


class _Search:
    """Goes from the largest card to one of the size that is needed, then up or down by one."""

    def __init__(
        self, plan: Plan, way: Way, lean: bool, sizes: Sequence[Gpu], floor: Floor
    ) -> None:
        self.plan = plan
        self.way = way
        self.lean = lean
        self.card: Card | None = None
        self._sizes = sizes
        self._floor = floor
        self._count = 1
        self._missed: Card | None = None
        """What is said where no number of cards is enough."""
        self._begin()

    def _begin(self) -> None:
        self._known: dict[int, Prediction | None] = {}
        """By card; ``None``: it cannot run there."""
        self._at = len(self._sizes) - 1
        asked = self.question()
        least = self._floor.of(asked) if isinstance(asked, Plan) else None
        if least is not None and self._count == 1:
            self._at = self._holding(least * 3 // 2, 0)

    def _holding(self, size: int, first: int) -> int:
        """The smallest card, from the first on, that has so many bytes; else the largest."""
        able = (n for n in range(first, len(self._sizes)) if self._sizes[n].memory >= size)
        return next(able, len(self._sizes) - 1)

    def question(self) -> Plan | MemcalcError | int:
        """The plan to trace next; or the bytes that the card has no room for."""
        there = replace(self.plan, gpu=self._sizes[self._at].name)
        try:
            way = self._way_on(there)
            lean = _lean(self.plan, self._count) if self.lean else ()
            asked = changed(there, (*way.changes, *lean))
        except StopIteration:
            return UsageError(f"{there.gpu} does not compute in bfloat16.")
        except MemcalcError as error:
            return error
        return self._floor.too_large(asked) or asked

    def _way_on(self, there: Plan) -> Way:
        """The way on the GPU of a plan: what half precision it computes in is part of it."""
        return next(one for one in ways(there) if one.key == self.way.key)

    def learn(self, answer: Prediction | MemcalcError | int) -> None:
        """Take the answer to the last question: it may be the last one."""
        self._known[self._at] = answer if isinstance(answer, Prediction) else None
        following = self._following()
        if following is not None:
            self._at = following
        elif any(map(_fits, self._known.values())):
            self._settle()
        elif isinstance(answer, int):
            self._miss(Card(way=self.way, lean=self.lean, floor=answer))
        elif isinstance(answer, MemcalcError):
            self._miss(Card(way=self.way, lean=self.lean, error=str(answer)))
        else:
            self._miss(Card(way=self.way, lean=self.lean, closest=figures(answer)))

    def _following(self) -> int | None:
        """The next card to try; ``None``: nothing is left to learn."""
        fitting = [at for at, known in self._known.items() if _fits(known)]
        too_small = max((at for at in self._known if at not in fitting), default=-1)
        now = self._known[self._at]
        size = needed(figures(now)) if now is not None else 0
        if not fitting:
            last = len(self._sizes) - 1
            return self._holding(size, too_small + 1) if too_small < last else None
        best = min(fitting)
        if best == too_small + 1 or self._hopeless(best):
            return None
        return min(self._holding(size, too_small + 1), best - 1)

    def _hopeless(self, best: int) -> bool:
        """What is alive at once on the card that fits is too much for the next smaller one."""
        known, below = self._known[best], self._sizes[best - 1]
        alive = (known.peak.allocated or 0) if known is not None else 0
        return hopeless(alive, device_of(below)) is not None

    def _settle(self) -> None:
        at, known = min((at, one) for at, one in self._known.items() if one and _fits(one))
        gpu = self._sizes[at]
        rate = speed(known, gpu)
        self.card = Card(
            way=self._way_on(replace(self.plan, gpu=gpu.name)),
            lean=self.lean,
            gpu=gpu.name,
            sold_as=gpu.sold_as,
            capacity=gpu.memory,
            figures=figures(known),
            speed=None if isinstance(rate, str) else rate,
        )

    def _miss(self, card: Card) -> None:
        """One card is too few, or so many are."""
        self._missed = self._missed or card
        self._count *= 2
        plan = self.plan
        wanted = self.lean and plan.devices == 1 and self._missed.error is None
        if not wanted or self._count > max(COUNTS) or plan.batch * plan.grad_accum % self._count:
            self.card = self._missed
        else:
            self._begin()


def _lean(plan: Plan, count: int) -> tuple[Change, ...]:
    """Checkpointing, and as many samples a step in up to so many micro-batches, over GPUs."""
    share = plan.batch * plan.grad_accum // count if count > 1 else plan.batch
    accumulated = plan.grad_accum if count == 1 else 1
    pieces = max(n for n in range(1, PIECES + 1) if share % n == 0)
    several: tuple[Change, ...] = (("devices", count), ("parallel", SHARDED))
    return (
        *(several if count > 1 else ()),
        ("checkpointing", True),
        ("batch", share // pieces),
        ("grad_accum", accumulated * pieces),
    )


def _fits(known: Prediction | None) -> bool:
    return known is not None and known.fit is not None and known.fit.verdict is FitVerdict.FITS


def _one_of_each_size(among: Iterable[Gpu]) -> Iterator[Gpu]:
    by_size: dict[int, list[Gpu]] = {}
    for gpu in among:
        if gpu.capability < _OLDEST:
            continue
        by_size.setdefault(gpu.sold_as, []).append(gpu)
    for _, alike in sorted(by_size.items()):
        able = [gpu for gpu in alike if ARCHITECTURES[gpu.capability].bf16]
        yield min(able or alike, key=lambda gpu: gpu.memory)
