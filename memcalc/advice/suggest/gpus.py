"""Finds the smallest card for each way to train a model.

One card stands for all of a size: that which offers a process least memory, among those that
compute in bfloat16 where the size has any. A plan is traced on the card it is said to fit, and on
the next smaller one, which it does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from msgspec.structs import replace

from memcalc.advice.remedies.goals import needed
from memcalc.advice.remedies.records import Change, Figures, figures
from memcalc.advice.remedies.trials import changed
from memcalc.advice.suggest.records import Card, Cards, Way
from memcalc.advice.suggest.strategies import ways
from memcalc.advice.suggest.suggest import check_trains
from memcalc.catalog import gpus
from memcalc.catalog.capabilities import ARCHITECTURES
from memcalc.catalog.gpus import Gpu
from memcalc.errors import MemcalcError, UsageError
from memcalc.estimation.estimate import Traced, Tracer
from memcalc.records.plan import Plan
from memcalc.records.prediction import FitVerdict

PIECES = 8
"""Micro-batches that a batch is cut into at most."""
_OLDEST = (7, 5)
"""Compute capability that PyTorch's builds for CUDA 13 begin with (its release notes of 2.9)."""


def cards(
    plan: Plan,
    *,
    use_cache: bool = True,
    seen: Callable[[Card, int], None] = lambda one, count: None,
) -> Cards:
    """Find the smallest card for each way to train a plan's model.

    Args:
        plan: what is trained; it names no GPU.
        use_cache: keep and reuse traces on disk.
        seen: told each answer as soon as it is known, and how many there will be.

    Raises:
        UsageError: the plan cannot be understood.
    """
    check_trains(plan)
    sizes = list(_one_of_each_size())
    searches = [
        _Search(way, lean, sizes)
        for way in ways(replace(plan, gpu=sizes[-1].name))
        for lean in (False, True)
    ]
    with Tracer(use_cache=use_cache, workers=None) as tracer:
        while open_ones := [one for one in searches if one.card is None]:
            plans = [one.question(plan) for one in open_ones]
            answers = tracer.traces([p for p in plans if isinstance(p, Plan)])
            for one, asked in zip(open_ones, plans, strict=True):
                one.learn(next(answers) if isinstance(asked, Plan) else asked)
                if one.card is not None:
                    seen(one.card, len(searches))
    found = tuple(one.card for one in searches if one.card is not None)
    if all(one.error is not None for one in found):
        raise UsageError(found[0].error or "Nothing can be tried.")
    return Cards(plan=plan, found=found)


class _Search:
    """Goes from the largest card to one of the size that is needed, then up or down by one."""

    def __init__(self, way: Way, lean: bool, sizes: Sequence[Gpu]) -> None:
        self.way = way
        self.lean = lean
        self.card: Card | None = None
        self._sizes = sizes
        self._at = len(sizes) - 1
        self._known: dict[int, Figures] = {}

    def question(self, plan: Plan) -> Plan | MemcalcError:
        """The plan to trace next."""
        there = replace(plan, gpu=self._sizes[self._at].name)
        try:
            # What half precision a card computes in is part of the way.
            way = next(one for one in ways(there) if one.key == self.way.key)
            lean = _lean(plan) if self.lean else ()
            return changed(there, (*way.changes, *lean))
        except StopIteration:
            return UsageError(f"{there.gpu} does not compute in bfloat16.")
        except MemcalcError as error:
            return error

    def learn(self, answer: Traced | MemcalcError) -> None:
        """Take the answer to the last question: it may be the last one."""
        if isinstance(answer, MemcalcError):
            if self._known:
                # A smaller card cannot run it; the one above was seen to.
                self._settle()
            else:
                self.card = Card(way=self.way, lean=self.lean, error=str(answer))
            return
        self._known[self._at] = figures(answer.prediction)
        following = self._following()
        if following is None or following in self._known:
            self._settle()
        else:
            self._at = following

    def _following(self) -> int | None:
        """The next card to try; ``None``: nothing is left to learn."""
        now = self._known[self._at]
        last = len(self._sizes) - 1
        if len(self._known) == 1:
            if not _fits(now):
                return None
            least = needed(now)
            return next(n for n, gpu in enumerate(self._sizes) if gpu.memory >= least or n == last)
        return (self._at - 1 if self._at else None) if _fits(now) else self._at + 1

    def _settle(self) -> None:
        fitting = [number for number, known in sorted(self._known.items()) if _fits(known)]
        if not fitting:
            closest = self._known[max(self._known)]
            self.card = Card(way=self.way, lean=self.lean, closest=closest)
            return
        gpu = self._sizes[fitting[0]]
        self.card = Card(
            way=self.way,
            lean=self.lean,
            gpu=gpu.name,
            sold_as=gpu.sold_as,
            capacity=gpu.memory,
            figures=self._known[fitting[0]],
        )


def _lean(plan: Plan) -> tuple[Change, ...]:
    """Checkpointing, and as many samples a step in up to so many micro-batches."""
    pieces = max(n for n in range(1, PIECES + 1) if plan.batch % n == 0)
    return (
        ("checkpointing", True),
        ("batch", plan.batch // pieces),
        ("grad_accum", plan.grad_accum * pieces),
    )


def _fits(known: Figures) -> bool:
    return known.fit is not None and known.fit.verdict is FitVerdict.FITS


def _one_of_each_size() -> Iterator[Gpu]:
    by_size: dict[int, list[Gpu]] = {}
    for gpu in gpus.table():
        if gpu.capability < _OLDEST:
            continue
        by_size.setdefault(gpu.sold_as, []).append(gpu)
    for _, alike in sorted(by_size.items()):
        able = [gpu for gpu in alike if ARCHITECTURES[gpu.capability].bf16]
        yield min(able or alike, key=lambda gpu: gpu.memory)
