"""Finds the smallest card for each way to train a model.

Cards are those that clouds rent, those that a user has prices of, or all. Of the cards of one size
the one with least memory is tried, among those that compute in bfloat16 where the size has any. A
plan is run on the card that it fits, and on the next smaller one, which it does not. Where one card
is too small, 2, 4 and 8 of them share the model.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from msgspec.structs import replace

from memcalc.advice.remedies.bounds import Floor
from memcalc.advice.remedies.records import Remedy, figures
from memcalc.advice.remedies.rows import accumulate, checkpoint_all, shard_over_gpus
from memcalc.advice.remedies.trials import apply
from memcalc.advice.search import Sample, largest
from memcalc.advice.suggest.records import Suggestion, Suggestions
from memcalc.advice.suggest.strategies import find_way, ways
from memcalc.advice.suggest.suggest import (
    COUNTS,
    Growing,
    Seen,
    check_trains,
    failed,
    with_speed,
)
from memcalc.catalog import gpus
from memcalc.catalog.gpus import Gpu, architectures
from memcalc.errors import MemcalcError, UsageError
from memcalc.estimation.answers import Answers
from memcalc.estimation.fits import cannot_fit, make_device
from memcalc.records.plan import Plan
from memcalc.records.prediction import Prediction

PIECES = 8
"""Micro-batches that a batch is cut into at most."""
_OLDEST = (7, 5)
"""Compute capability that PyTorch's builds for CUDA 13 begin with (its release notes of 2.9)."""


def cards(
    plan: Plan,
    *,
    among: Iterable[Gpu] | None = None,
    use_cache: bool = True,
    seen: Seen = lambda so_far: None,
) -> Suggestions:
    """Find, for each way to train, the GPU with the least memory that fits.

    Raises:
        UsageError: the plan cannot be understood, or there is no card that PyTorch runs on.
    """
    check_trains(plan)
    sizes = list(_one_of_each_size(gpus.list_rental_gpus() if among is None else among))
    if not sizes:
        raise UsageError("PyTorch's builds run on none of these GPUs: name newer ones.")
    answers = Answers(use_cache=use_cache, workers=None, counted=True, figures=True)
    finder = _Finder(plan, sizes, answers)
    growing = Growing(Suggestions(plan=plan, found=()), seen)
    tried = list(ways(replace(plan, gpu=sizes[-1].name)))
    for lean in (False, True):
        # A way that fits the smallest card as it is needs nothing leaner.
        done = {
            one.way.key
            for one in growing.found
            if one.figures is not None and one.figures.plan.gpu == sizes[0].name
        }
        jobs = [partial(finder.find, way, lean) for way in tried if way.key not in done]
        growing.add_all(answers.iterate_results(jobs))
    return growing.finish()


class _Finder:
    """The search for the smallest card, way by way."""

    def __init__(self, plan: Plan, sizes: Sequence[Gpu], answers: Answers) -> None:
        self._plan, self._sizes, self._answers = plan, sizes, answers
        self._by_size = {-gpu.memory: gpu for gpu in reversed(sizes)}
        self._floor = Floor(plan)

    def find(self, way: Remedy, lean: bool) -> Suggestion:
        """Find the smallest GPU for a way; if lean and none fits, the fewest of the largest."""
        missed = self._find_smallest(way, lean, 1)
        samples = self._plan.batch * self._plan.grad_accum
        if missed.figures is None and missed.error is None and lean and self._plan.devices == 1:
            for count in COUNTS:
                if samples % count:
                    break
                found = self._find_smallest(way, lean, count)
                if found.figures is not None:
                    return found
        return missed

    def _find_smallest(self, way: Remedy, lean: bool, count: int) -> Suggestion:
        """Find the smallest GPU that fits a way, on ``count`` GPUs with shards if more than one."""
        more = _memory_saving_changes(self._plan, count) if lean else ()
        known: dict[int, Prediction | MemcalcError | int] = {}

        def ask(size: int) -> Sample:
            """Estimate the way on the GPU of this (negative) size: fit and bytes to spare."""
            gpu = self._by_size[size]
            alive = [a.peak.allocated or 0 for a in known.values() if isinstance(a, Prediction)]
            if alive and cannot_fit(min(alive), make_device(gpu)) is not None:
                return Sample(holds=False, spare=None)
            asked = self._plan_on(gpu, way, more)
            known[size] = answer = (
                next(self._answers.predict([asked])) if isinstance(asked, Plan) else asked
            )
            if not isinstance(answer, Prediction):
                return Sample(holds=False, spare=None)
            return Sample(holds=answer.fits, spare=gpu.memory - figures(answer).needed)

        # A card with a byte less has a byte less to spare.
        best = largest(ask, tuple(self._by_size), self._choose_start(way, more, count), fall=1).best
        if best is None:
            return failed(way, known[min(known)], *more)
        gpu, found = self._by_size[best], known[best]
        assert isinstance(found, Prediction)
        way = find_way(replace(self._plan, gpu=gpu.name), way.key) or way
        one = Suggestion(way=way, remedies=more, figures=figures(found))
        return with_speed(one, found, gpu)

    def _choose_start(self, way: Remedy, more: tuple[Remedy, ...], count: int) -> int:
        """Return the size to try first: minus 1.5 times the least bytes, or the largest card."""
        largest_card = self._sizes[-1]
        asked = self._plan_on(largest_card, way, more)
        least = self._floor.least(asked) if isinstance(asked, Plan) and count == 1 else None
        return max(-largest_card.memory, -(least or largest_card.memory) * 3 // 2)

    def _plan_on(
        self, gpu: Gpu, way: Remedy, more: tuple[Remedy, ...]
    ) -> Plan | MemcalcError | int:
        """Return the plan on a GPU, an error, or its least bytes if the GPU is too small."""
        there = replace(self._plan, gpu=gpu.name)
        try:
            # What half precision the card computes in is part of the way.
            own = find_way(there, way.key)
            if own is None:
                return UsageError(f"{gpu.name} does not compute in bfloat16.")
            asked = apply(there, own, *more)
        except MemcalcError as error:
            return error
        return self._floor.excess(asked) or asked


def _memory_saving_changes(plan: Plan, count: int) -> tuple[Remedy, ...]:
    """Return full checkpointing and micro-batches, with shards over ``count`` GPUs."""
    spread: tuple[Remedy, ...] = ()
    if count > 1:
        spread = (shard_over_gpus(plan, count),)
        plan = apply(plan, *spread)
    pieces = max(n for n in range(1, PIECES + 1) if plan.batch % n == 0)
    return (*spread, checkpoint_all(), accumulate(plan, pieces))


def _one_of_each_size(among: Iterable[Gpu]) -> Iterator[Gpu]:
    """Yield one supported GPU per nominal memory size, with bfloat16 if any has it."""
    by_size: dict[int, list[Gpu]] = {}
    for gpu in among:
        if gpu.capability >= _OLDEST:
            by_size.setdefault(gpu.sold_as, []).append(gpu)
    for _, alike in sorted(by_size.items()):
        able = [gpu for gpu in alike if architectures()[gpu.capability].bf16]
        yield min(able or alike, key=lambda gpu: gpu.memory)
