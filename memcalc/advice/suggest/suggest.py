"""Suggests ways to train that fit a plan's GPU."""

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from msgspec.structs import replace

from memcalc.advice.remedies.bounds import Floor
from memcalc.advice.remedies.records import Change, Figures, Remedy, figures, fit_goal
from memcalc.advice.remedies.rows import SHARDED, SHARDS, shard_over_gpus
from memcalc.advice.remedies.search import candidates, search
from memcalc.advice.remedies.trials import Trials, apply, change
from memcalc.advice.suggest.records import Suggestion, Suggestions
from memcalc.advice.suggest.speed_and_price import speed
from memcalc.advice.suggest.strategies import ways
from memcalc.catalog import gpus
from memcalc.catalog.plan import make
from memcalc.errors import MemcalcError, UsageError
from memcalc.estimation.answers import Answers
from memcalc.records.fields import name_settings
from memcalc.records.plan import Plan
from memcalc.records.prediction import FitVerdict, Prediction

COUNTS = (2, 4, 8)
"""GPUs of a box, where one is too small to train every weight."""
DEAREST = 4
"""Rank of the most costly remedies that a way may be given: they change how it is trained only."""
_LEFT_OUT = ("amp", "in backward")
_STATELESS: tuple[Change, ...] = (("optim", "sgd"), ("optim_args", ()))
"""Represents a GPU that shares optimizer state with enough others."""
Seen = Callable[[Suggestions], None]


@name_settings
def suggest(model: str | Plan, *, gpu: str, use_cache: bool = True, **settings: Any) -> Suggestions:
    """Find the ways to train a model that fit a GPU.

    Args:
        model: as for ``memcalc.estimate``.
        gpu: name of the GPU.
        use_cache: keep and reuse traces on disk.
        **settings: fields of ``Plan``; batch and accumulation say how many samples a step has.

    Raises:
        UsageError: the question cannot be understood.
    """
    return suggest_plan(make({"model": model, "gpu": gpu, **settings}), use_cache=use_cache)


def check_trains(plan: Plan) -> None:
    """Raise UsageError unless the plan trains, on a GPU.

    Raises:
        UsageError: it does not.
    """
    if plan.infers:
        asked = "generate" if plan.generate is not None else "inference"
        raise UsageError(
            f"memcalc suggest finds ways to train: leave out {asked}, or use memcalc fit."
        )
    if plan.target == "cpu":
        raise UsageError("A CPU run needs no card: leave --target cpu out.")


def suggest_plan(
    plan: Plan, *, use_cache: bool = True, seen: Seen = lambda so_far: None
) -> Suggestions:
    """Find the ways to train that fit the plan's GPU; call ``seen`` with each partial result.

    Raises:
        UsageError: the plan names no GPU, or cannot be understood.
    """
    if plan.gpu is None:
        raise UsageError("Suggest for which GPU? Name one with --gpu; see memcalc list gpus.")
    check_trains(plan)
    gpu, tried = gpus.find(plan.gpu), list(ways(plan))
    growing = Growing(Suggestions(plan=plan, gpu=gpu.name, capacity=gpu.memory, found=()), seen)
    answers = Answers(use_cache=use_cache, workers=None, counted=True, figures=True)
    finder = _Finder(plan, answers, growing.add_first)
    growing.add_all(answers.iterate_results([partial(finder.find, way) for way in tried]))
    first = next(one for one in growing.found if one.way.key == tried[0].key)
    if plan.devices == 1 and first.figures is None and first.error is None:
        growing.add_all(finder.find_over_several(tried[0]))
    return growing.finish()


class Growing:
    """The suggestions found so far, sorted, the way that gives up least first.

    Threads may share it.
    """

    def __init__(self, empty: Suggestions, seen: Seen) -> None:
        self._empty, self._seen = empty, seen
        self._order = [way.key for way in ways(empty.plan)]
        self.found: list[Suggestion] = []
        self._first: dict[str, Suggestion] = {}
        """Ways that are still searched, with the first plan that was tried."""
        self._lock = threading.Lock()

    def add_all(self, found: Iterable[Suggestion]) -> None:
        """Add suggestions one by one, and pass all of them to ``seen`` after each."""
        for one in found:
            with self._lock:
                self._first.pop(one.way.key, None)
                self.found.append(one)
                self._seen(self._sort_all())

    def add_first(self, one: Suggestion) -> None:
        """Add the first plan tried for a way, which does not fit, and pass all to ``seen``."""
        with self._lock:
            self._first[one.way.key] = one
            self._seen(self._sort_all())

    def finish(self) -> Suggestions:
        """Return all suggestions, sorted.

        Raises:
            UsageError: none could be estimated.
        """
        if all(one.error is not None for one in self.found):
            raise UsageError(self._sort_all().found[0].error or "Nothing can be tried.")
        return self._sort_all()

    def _sort_key(self, one: Suggestion) -> tuple[int, str, bool]:
        # More GPUs come after the way itself, remedies after the plan without.
        key = one.way.key
        return self._order.index(key.partition(" x ")[0]), key, len(one.remedies) > 0

    def _sort_all(self) -> Suggestions:
        """Return the suggestions in order of display: for one GPU those that fit come first."""
        found = sorted([*self.found, *self._first.values()], key=self._sort_key)
        if self._empty.gpu is not None:
            found.sort(key=lambda one: (one.figures is None, not one.tight))
        return replace(self._empty, found=tuple(found))


def with_speed(one: Suggestion, prediction: Prediction, gpu: gpus.Gpu) -> Suggestion:
    """Return a suggestion with its calculated samples per second, or why they are unknown."""
    rate = speed(prediction, gpu)
    return replace(one, no_speed=rate) if isinstance(rate, str) else replace(one, speed=rate)


def failed(way: Remedy, answer: Prediction | MemcalcError | int, *remedies: Remedy) -> Suggestion:
    """Return the suggestion of a way that does not fit: closest figures, error or least bytes."""
    one = Suggestion(way=way, remedies=remedies)
    if isinstance(answer, Prediction):
        return replace(one, closest=figures(answer))
    if isinstance(answer, int):
        return replace(one, floor=answer)
    return replace(one, error=str(answer))


class _Finder:
    """The search for what fits the GPUs of a plan, way by way."""

    def __init__(self, plan: Plan, answers: Answers, seen: Callable[[Suggestion], None]) -> None:
        """Try nothing yet; the first plan tried for a way is passed to ``seen``."""
        self._plan, self._answers, self._floor = plan, answers, Floor(plan)
        self._seen = seen
        # Where several GPUs hold the same by default, they share it at first: what divides most is
        # the quickest to trace, and tells whether anything can fit.
        self._divides = plan.devices > 1 and plan.parallel is None

    def find(self, way: Remedy) -> Suggestion:
        """Find a plan for the plan's GPUs by one way, with remedies or layouts if needed."""
        plan = replace(self._plan, parallel=SHARDED) if self._divides else self._plan
        answer, undivided = self._estimate(plan, way), None
        if self._divides:
            with contextlib.suppress(UsageError):
                undivided = apply(self._plan, way)
        if isinstance(answer, MemcalcError) and undivided is not None:
            (answer,), undivided = self._answers.predict([undivided]), None
        if not isinstance(answer, Prediction):
            return failed(way, answer)
        if not figures(answer).fits:
            self._seen(failed(way, answer))
        if undivided is None:
            return self._search_remedies(way, answer)
        shards = tuple(one for one in candidates(undivided) if one.key == SHARDED)
        before = figures(answer)
        less = self._find_layout(way, undivided, before) if fit_goal(before) is None else None
        return less or self._search_remedies(way, answer, shards)

    def find_over_several(self, way: Remedy) -> Iterator[Suggestion]:
        """Find the fewest GPUs that fit a way too large for one, with the same samples a step."""
        for count in COUNTS:
            if self._plan.batch * self._plan.grad_accum % count:
                return
            spread = shard_over_gpus(self._plan, count)
            more = replace(
                way,
                key=f"{way.key} x {count}",
                title=f"{way.title}, {spread.title}",
                changes=(*way.changes, *spread.changes),
                cost=spread.cost,
            )
            if self._floor.excess(apply(self._plan, more)) is not None:
                continue
            answer = self._estimate(self._plan, more)
            if isinstance(answer, Prediction):
                # More GPUs are cheaper than the bus.
                one = self._search_remedies(more, answer, left_out=(*_LEFT_OUT, "offload"))
                if one.figures is not None:
                    yield one
                    return

    def _estimate(self, plan: Plan, way: Remedy) -> Prediction | MemcalcError | int:
        """Estimate the plan in a way; return the least bytes instead if those cannot fit."""
        try:
            there = apply(plan, way)
        except UsageError as error:
            return error
        # Over several GPUs shards may wait in host memory.
        size = self._floor.excess(there) if there.devices == 1 else None
        return next(self._answers.predict([there])) if size is None else size

    def _search_remedies(
        self,
        way: Remedy,
        answer: Prediction,
        shards: tuple[Remedy, ...] = (),
        left_out: tuple[str, ...] = _LEFT_OUT,
    ) -> Suggestion:
        """Return a way with the cheapest remedies with which it fits, or its closest plan."""
        # The processes are busy with the other ways.
        trials = Trials(answer, self._answers, at_once=1)
        goal = fit_goal(trials.before)
        if goal is None:
            return self._make_suggestion(way, trials, trials.before, shards)
        rows = [r for r in candidates(trials.plan) if r.rank <= DEAREST and r.key not in left_out]
        found = search(trials, rows, goal, self._floor.inventory)
        if found.best is not None and found.best.figures is not None:
            remedies = (*shards, *found.best.remedies)
            return self._make_suggestion(way, trials, found.best.figures, remedies)
        every = [trials.before, *(t.figures for t in found.trials if t.figures is not None)]

        def distance(one: Figures) -> tuple[bool, int]:
            """Return how far from fitting a plan is: a tight one is nearer than all others."""
            return one.fit is None or one.fit.verdict is not FitVerdict.TIGHT, one.needed

        return Suggestion(way=way, closest=min(every, key=distance))

    def _find_layout(self, way: Remedy, plan: Plan, divided: Figures) -> Suggestion | None:
        """Return a suggestion with the least sharded layout that fits, or None."""
        assert divided.fit is not None
        outside = divided.context.low if divided.context is not None else 0
        known = {one.key: (one,) for one in candidates(plan) if one.key in SHARDS}
        for name in ("", *SHARDS):
            if name == SHARDED:
                return None
            alone = (("devices", 1), ("parallel", None), *(_STATELESS if name else ()))
            held = self._floor.least(change(plan, alone)) or 0
            if held + outside > divided.fit.limit:
                continue
            remedies = known.get(name, ())
            (answer,) = self._answers.predict([apply(plan, *remedies)])
            if isinstance(answer, Prediction) and fit_goal(figures(answer)) is None:
                there = Trials(answer, self._answers)
                return self._make_suggestion(way, there, there.before, remedies)
        return None

    @staticmethod
    def _make_suggestion(
        way: Remedy, trials: Trials, found: Figures, remedies: tuple[Remedy, ...]
    ) -> Suggestion:
        """Return the suggestion of a way that fits with these remedies, and its speed."""
        assert trials.plan.gpu is not None
        one = Suggestion(way=way, figures=found, remedies=remedies)
        prediction = trials.answers.predict_one(found.plan)
        return with_speed(one, prediction, gpus.find(trials.plan.gpu))
