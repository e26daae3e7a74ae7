"""Finds the smallest card for each way to train a model.

Cards are those that clouds rent, those that a user has prices of, or all. One stands for all of a
size: that which offers a process least memory, among those that compute in bfloat16 where the size
has any. A plan is run on the card it is said to fit, and on the next smaller one, which it does
not. Where one card is too few, 2, 4 and 8 of them share the model.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

from msgspec.structs import replace

from memcalc.advice.remedies.records import Change, figures, needed
from memcalc.advice.remedies.rows.same_result import SHARDED
from memcalc.advice.remedies.trials import changed
from memcalc.advice.suggest.records import Card, Cards, Way
from memcalc.advice.suggest.speed_and_price import speed
from memcalc.advice.suggest.strategies import way_of, ways
from memcalc.advice.suggest.suggest import COUNTS, Floor, check_trains
from memcalc.catalog import gpus
from memcalc.catalog.gpus import ARCHITECTURES, Gpu
from memcalc.errors import MemcalcError, UsageError
from memcalc.estimation.answers import Answers
from memcalc.estimation.fits import device_of, hopeless
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
    seen: Callable[[Card, int], None] = lambda one, count: None,
) -> Cards:
    """Find the smallest card, among these or those that clouds rent, for each way to train.

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

    answers = Answers(use_cache=use_cache, workers=None, counted=True, figures=True)
    _answer([_search(plan, way, False, sizes, floor) for way in tried], answers, told)
    # Who fits the smallest card as it is needs nothing leaner.
    done = {one.way.key for one in found if one.gpu == sizes[0].name}
    lean = [_search(plan, way, True, sizes, floor) for way in tried if way.key not in done]
    _answer(lean, answers, told)
    order = [way.key for way in tried]
    found.sort(key=lambda one: (order.index(one.way.key), one.lean))
    if all(one.error is not None for one in found):
        raise UsageError(found[0].error or "Nothing can be tried.")
    return Cards(plan=plan, found=tuple(found))


Search = Generator[Plan, Prediction | MemcalcError | None, Card]
"""Asks for one estimate after the other, until the card is known."""


def _answer(searches: Iterable[Search], answers: Answers, told: Callable[[Card], None]) -> None:
    """Take searches to their ends, a question of each side by side."""

    def next_of(
        search: Search, answer: Prediction | MemcalcError | None
    ) -> list[tuple[Search, Plan]]:
        try:
            return [(search, search.send(answer))]
        except StopIteration as ended:
            told(ended.value)
            return []

    waiting = [one for search in searches for one in next_of(search, None)]
    while waiting:
        both = zip(waiting, answers.predict([plan for _, plan in waiting]), strict=True)
        waiting = [one for (search, _), answer in both for one in next_of(search, answer)]


def _search(plan: Plan, way: Way, lean: bool, sizes: Sequence[Gpu], floor: Floor) -> Search:
    """The smallest card, or the fewest of the largest ones."""
    missed: Card | None = None
    count = 1
    while True:
        found = yield from _on_one_of(plan, way, lean, count, sizes, floor)
        if found.figures is not None:
            return found
        missed = missed or found
        count *= 2
        wanted = lean and plan.devices == 1 and missed.error is None
        if not wanted or count > max(COUNTS) or plan.batch * plan.grad_accum % count:
            return missed


def _on_one_of(
    plan: Plan, way: Way, lean: bool, count: int, sizes: Sequence[Gpu], floor: Floor
) -> Search:
    """Go from the largest card to one of the size that is needed, then up or down by one."""
    more = _lean(plan, count) if lean else ()
    known: dict[int, Prediction | None] = {}
    at: int | None = len(sizes) - 1
    asked = _on(plan, way, more, sizes[-1], floor)
    least = floor.of(asked) if isinstance(asked, Plan) else None
    if least is not None and count == 1:
        at = _holding(sizes, least * 3 // 2)
    while at is not None:
        asked = _on(plan, way, more, sizes[at], floor)
        answer = (yield asked) if isinstance(asked, Plan) else asked
        known[at] = answer if isinstance(answer, Prediction) else None
        at = _following(known, at, sizes)
    fitting = {number: one for number, one in known.items() if one is not None and one.fits}
    if fitting:
        smallest = min(fitting)
        gpu, found = sizes[smallest], fitting[smallest]
        rate = speed(found, gpu)
        return Card(
            way=way_of(replace(plan, gpu=gpu.name), way.key) or way,
            lean=lean,
            gpu=gpu.name,
            sold_as=gpu.sold_as,
            capacity=gpu.memory,
            figures=figures(found),
            speed=None if isinstance(rate, str) else rate,
        )
    if isinstance(answer, Prediction):
        return Card(way=way, lean=lean, closest=figures(answer))
    if isinstance(answer, int):
        return Card(way=way, lean=lean, floor=answer)
    return Card(way=way, lean=lean, error=str(answer))


def _on(
    plan: Plan, way: Way, more: tuple[Change, ...], gpu: Gpu, floor: Floor
) -> Plan | MemcalcError | int:
    """The plan on a card; or the bytes that the card has no room for."""
    there = replace(plan, gpu=gpu.name)
    try:
        # What half precision the card computes in is part of the way.
        own = way_of(there, way.key)
        if own is None:
            return UsageError(f"{gpu.name} does not compute in bfloat16.")
        asked = changed(there, (*own.changes, *more))
    except MemcalcError as error:
        return error
    return floor.too_large(asked) or asked


def _holding(sizes: Sequence[Gpu], size: int, first: int = 0) -> int:
    """The smallest card, from the first on, that has so many bytes; else the largest."""
    able = (number for number in range(first, len(sizes)) if sizes[number].memory >= size)
    return next(able, len(sizes) - 1)


def _following(known: dict[int, Prediction | None], at: int, sizes: Sequence[Gpu]) -> int | None:
    """The next card to try after one; ``None``: nothing is left to learn."""
    fitting = [number for number, one in known.items() if one is not None and one.fits]
    too_small = max((number for number in known if number not in fitting), default=-1)
    now = known[at]
    size = needed(figures(now)) if now is not None else 0
    if not fitting:
        return _holding(sizes, size, too_small + 1) if too_small < len(sizes) - 1 else None
    best = min(fitting)
    smallest = known[best]
    # What is alive at once on the card that fits may be too much for the next smaller one.
    alive = (smallest.peak.allocated or 0) if smallest is not None else 0
    if best == too_small + 1 or hopeless(alive, device_of(sizes[best - 1])) is not None:
        return None
    return min(_holding(sizes, size, too_small + 1), best - 1)


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


def _one_of_each_size(among: Iterable[Gpu]) -> Iterator[Gpu]:
    by_size: dict[int, list[Gpu]] = {}
    for gpu in among:
        if gpu.capability >= _OLDEST:
            by_size.setdefault(gpu.sold_as, []).append(gpu)
    for _, alike in sorted(by_size.items()):
        able = [gpu for gpu in alike if ARCHITECTURES[gpu.capability].bf16]
        yield min(able or alike, key=lambda gpu: gpu.memory)
