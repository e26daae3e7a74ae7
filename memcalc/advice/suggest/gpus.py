"""Finds the smallest card for each way to train a model.

Cards are those that clouds rent, those that a user has prices of, or all. One stands for all of a
size: that which offers a process least memory, among those that compute in bfloat16 where the size
has any. A plan is run on the card it is said to fit, and on the next smaller one, which it does
not. Where one card is too few, 2, 4 and 8 of them share the model.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from msgspec.structs import replace

from memcalc.advice.remedies.records import Change, figures, needed
from memcalc.advice.remedies.rows.same_result import SHARDED
from memcalc.advice.remedies.trials import changed
from memcalc.advice.search import Sample, largest
from memcalc.advice.suggest.records import Card, Cards, Way
from memcalc.advice.suggest.speed_and_price import speed
from memcalc.advice.suggest.strategies import way_of, ways
from memcalc.advice.suggest.suggest import COUNTS, Floor, check_trains
from memcalc.catalog import gpus
from memcalc.catalog.gpus import Gpu, architectures
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
    seen: Callable[[Cards], None] = lambda so_far: None,
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

    order = [way.key for way in tried]

    def told(card: Card) -> None:
        found.append(card)
        found.sort(key=lambda one: (order.index(one.way.key), one.lean))
        seen(Cards(plan=plan, found=tuple(found)))

    answers = Answers(use_cache=use_cache, workers=None, counted=True, figures=True)
    for lean in (False, True):
        # Who fits the smallest card as it is needs nothing leaner.
        done = {one.way.key for one in found if one.gpu == sizes[0].name}
        jobs = [
            partial(_smallest, plan, way, lean, sizes, floor, answers)
            for way in tried
            if way.key not in done
        ]
        for card in answers.as_known(jobs):
            told(card)
    if all(one.error is not None for one in found):
        raise UsageError(found[0].error or "Nothing can be tried.")
    return Cards(plan=plan, found=tuple(found))


def _smallest(
    plan: Plan, way: Way, lean: bool, sizes: Sequence[Gpu], floor: Floor, answers: Answers
) -> Card:
    """Find the smallest card, or the fewest of the largest ones."""
    missed: Card | None = None
    count = 1
    while True:
        found = _on_one_of(plan, way, lean, count, sizes, floor, answers)
        if found.figures is not None:
            return found
        missed = missed or found
        count *= 2
        wanted = lean and plan.devices == 1 and missed.error is None
        if not wanted or count > max(COUNTS) or plan.batch * plan.grad_accum % count:
            return missed


def _on_one_of(
    plan: Plan,
    way: Way,
    lean: bool,
    count: int,
    sizes: Sequence[Gpu],
    floor: Floor,
    answers: Answers,
) -> Card:
    """Find the smallest card that a plan fits: each run tells how large one has to be."""
    more = _lean(plan, count) if lean else ()
    known: dict[int, Prediction | MemcalcError | int] = {}

    by_size = {-gpu.memory: gpu for gpu in reversed(sizes)}

    def ask(size: int) -> Sample:
        gpu = by_size[size]
        alive = [one.peak.allocated or 0 for one in known.values() if isinstance(one, Prediction)]
        if alive and hopeless(min(alive), device_of(gpu)) is not None:
            return Sample(holds=False, spare=None)
        asked = _on(plan, way, more, gpu, floor)
        answer = next(answers.predict([asked])) if isinstance(asked, Plan) else asked
        known[size] = answer
        if not isinstance(answer, Prediction):
            return Sample(holds=False, spare=None)
        return Sample(holds=bool(answer.fits), spare=gpu.memory - needed(figures(answer)))

    start = -sizes[-1].memory
    asked = _on(plan, way, more, sizes[-1], floor)
    least = floor.of(asked) if isinstance(asked, Plan) else None
    if least is not None and count == 1:
        start = max(start, -least * 3 // 2)
    # A card with a byte less has a byte less to spare.
    best = largest(ask, tuple(by_size), start, fall=1).best
    if best is None:
        return _too_large(way, lean, known[min(known)])
    gpu, found = by_size[best], known[best]
    assert isinstance(found, Prediction)
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


def _too_large(way: Way, lean: bool, answer: Prediction | MemcalcError | int) -> Card:
    """Return what is known of a way on the largest card that was tried."""
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
        able = [gpu for gpu in alike if architectures()[gpu.capability].bf16]
        yield min(able or alike, key=lambda gpu: gpu.memory)
