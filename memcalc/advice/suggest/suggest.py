"""Suggests ways to train that fit a plan's GPU."""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from msgspec.structs import replace

from memcalc.advice.remedies.records import Change, Figures, Remedy, fitting, needed
from memcalc.advice.remedies.rows.same_result import SHARDED, SHARDS
from memcalc.advice.remedies.search import candidates, search
from memcalc.advice.remedies.trials import Trials, apply, changed
from memcalc.advice.suggest.records import Suggestion, Suggestions, Way
from memcalc.advice.suggest.speed_and_price import speed
from memcalc.advice.suggest.strategies import ways
from memcalc.catalog import gpus
from memcalc.catalog.plan import make
from memcalc.errors import MemcalcError, UsageError
from memcalc.estimation.analytic import least
from memcalc.estimation.answers import Answers
from memcalc.estimation.estimate import inventory_of
from memcalc.estimation.fits import device_of, hopeless
from memcalc.estimation.validate import check
from memcalc.records.model import Inventory
from memcalc.records.plan import Plan
from memcalc.records.prediction import FitVerdict, Prediction

COUNTS = (2, 4, 8)
"""GPUs of a box, where one is too few to train every weight."""
DEAREST = 4
"""Rank of the most costly remedies that a way may be given: they change how it is trained only."""
_LEFT_OUT = ("amp", "in backward")
_STATELESS: tuple[Change, ...] = (("optim", "sgd"), ("optim_args", ()))
"""What a GPU holds that shares optimizer state with enough others."""


def suggest(model: str, *, gpu: str, use_cache: bool = True, **settings: Any) -> Suggestions:
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
    """See that a plan is one that ways to train are about.

    Raises:
        UsageError: it trains nothing, or on no GPU.
    """
    if plan.infers:
        asked = "generate" if plan.generate is not None else "inference"
        raise UsageError(
            f"memcalc suggest finds ways to train: leave out {asked}, or use memcalc fit."
        )
    if plan.target == "cpu":
        raise UsageError("A CPU run needs no card: leave --target cpu out.")


def suggest_plan(
    plan: Plan,
    *,
    use_cache: bool = True,
    seen: Callable[[Suggestions], None] = lambda so_far: None,
) -> Suggestions:
    """Find the ways that fit a plan's GPU; ``seen`` is called with those known so far.

    Raises:
        UsageError: the plan names no GPU, or cannot be understood.
    """
    if plan.gpu is None:
        raise UsageError("Suggest for which GPU? Name one with --gpu; see memcalc list gpus.")
    check_trains(plan)
    gpu = gpus.find(plan.gpu)
    tried = list(ways(plan))
    order = [way.key for way in tried]
    found: list[Suggestion] = []

    def so_far() -> Suggestions:
        ordered = sorted(found, key=lambda one: (one.figures is None, not one.tight))
        return Suggestions(plan=plan, gpu=gpu.name, capacity=gpu.memory, found=tuple(ordered))

    def told(one: Suggestion) -> None:
        found.append(one)
        found.sort(key=lambda one: order.index(one.way.key))
        seen(so_far())

    answers = Answers(use_cache=use_cache, workers=None, counted=True, figures=True)
    floor = Floor(plan)
    jobs = [partial(_on_this_many, _divided(plan), way, answers, floor) for way in tried]
    for one in answers.as_known(jobs):
        told(one)
    if plan.devices == 1 and found[0].figures is None and found[0].error is None:
        found[1:1] = _over_several(plan, tried[0], answers, floor)
    if all(one.error is not None for one in found):
        raise UsageError(found[0].error or "Nothing can be tried.")
    return so_far()


class Floor:
    """What plans of one model hold at the least, by closed forms: it rules them out untraced."""

    def __init__(self, plan: Plan) -> None:
        self.inventory: Inventory | None = None
        # Whoever traces a plan says why its model cannot be built.
        with contextlib.suppress(MemcalcError):
            self.inventory = inventory_of(check(replace(plan, lora=None, quant=None)))

    def too_large(self, plan: Plan) -> int | None:
        """Bytes of weights, gradients and optimizer state that leave no room; ``None``: they do."""
        size = self.of(plan)
        if size is None or plan.gpu is None:
            return None
        return size if hopeless(size, device_of(gpus.find(plan.gpu), plan=plan)) else None

    def of(self, plan: Plan) -> int | None:
        """Bytes that a plan holds at the least; ``None``: not known."""
        if self.inventory is None:
            return None
        try:
            return least(plan, self.inventory)
        except MemcalcError:
            return None


Base = Prediction | MemcalcError | int
"""A way estimated; or why it cannot be; or the bytes that it has no room for."""


def _on_this_many(plan: Plan, way: Way, answers: Answers, floor: Floor) -> Suggestion:
    """Search for what fits the GPUs of the plan by one way."""
    return _suggestion(way, _base(plan, way, answers, floor), answers, floor, _undivided(plan, way))


def _base(plan: Plan, way: Way, answers: Answers, floor: Floor) -> Base:
    """Estimate the plan in a way, unless it cannot fit."""
    try:
        there = changed(plan, way.changes)
    except UsageError as error:
        return error
    # Over several GPUs shards may wait in host memory.
    size = floor.too_large(there) if there.devices == 1 else None
    return next(answers.predict([there])) if size is None else size


def _over_several(plan: Plan, way: Way, answers: Answers, floor: Floor) -> Iterator[Suggestion]:
    """A way that one GPU is too small for, over the fewest that it fits, with as many samples."""
    samples = plan.batch * plan.grad_accum
    for count in COUNTS:
        if samples % count:
            return
        spread = (
            ("devices", count),
            ("parallel", SHARDED),
            ("batch", samples // count),
            ("grad_accum", 1),
        )
        more = replace(
            way,
            key=f"{way.key} x {count}",
            title=f"{way.title}, over {count} GPUs ({SHARDED})",
            changes=(*way.changes, *spread),
            costs=f"{count} GPUs, and traffic between them",
        )
        if floor.too_large(changed(plan, more.changes)) is not None:
            continue
        base = _base(plan, more, answers, floor)
        # More GPUs are cheaper than the bus.
        one = _suggestion(more, base, answers, floor, left_out=(*_LEFT_OUT, "offload"))
        if one.figures is not None:
            yield one
            return


def _suggestion(
    way: Way,
    base: Base,
    answers: Answers,
    floor: Floor,
    undivided: Plan | None = None,
    left_out: tuple[str, ...] = _LEFT_OUT,
) -> Suggestion:
    """What a way comes to; ``undivided`` is its plan where the layout was not said."""
    if isinstance(base, MemcalcError) and undivided is not None:
        (base,), undivided = answers.predict([undivided]), None
    if isinstance(base, int):
        return Suggestion(way=way, floor=base)
    if isinstance(base, MemcalcError):
        return Suggestion(way=way, error=str(base))
    # The processes are busy with the other ways.
    trials = Trials(base, answers, side_by_side=1)
    goal = fitting(trials.before)
    shards: tuple[Remedy, ...] = ()
    if undivided is not None:
        if goal is None:
            less = _less_divided(way, undivided, trials.before, floor.inventory, answers)
            if less is not None:
                return less
        shards = tuple(one for one in candidates(undivided) if one.key == SHARDED)
    if goal is None:
        return _fits(way, trials, trials.before, shards)
    usable = [
        r
        for r in candidates(trials.plan)
        if r.rank <= DEAREST and r.key not in left_out and r.unfit is None
    ]
    found = search(trials, trials.before, usable, goal, floor.inventory)
    if found.best is not None and found.best.figures is not None:
        return _fits(way, trials, found.best.figures, (*shards, *found.remedies))
    every = [trials.before, *(t.figures for t in found.trials if t.figures is not None)]

    def distance(figures: Figures) -> tuple[bool, int]:
        """How far from fitting: what is tight is nearer than all that does not fit."""
        tight = figures.fit is not None and figures.fit.verdict is FitVerdict.TIGHT
        return not tight, needed(figures)

    return Suggestion(way=way, closest=min(every, key=distance))


def _divided(plan: Plan) -> Plan:
    """The plan to begin with: where several GPUs hold the same by default, they share it.

    What divides most is the quickest to trace, and tells whether anything can fit.
    """
    return replace(plan, parallel=SHARDED) if plan.devices > 1 and plan.parallel is None else plan


def _undivided(plan: Plan, way: Way) -> Plan | None:
    if _divided(plan) is plan:
        return None
    try:
        return changed(plan, way.changes)
    except UsageError:
        return None


def _less_divided(
    way: Way, plan: Plan, divided: Figures, inventory: Inventory | None, answers: Answers
) -> Suggestion | None:
    """The layout that divides least and fits; ``None``: only that which divides most does."""
    assert divided.fit is not None
    outside = divided.context.low if divided.context is not None else 0
    known = {one.key: (one,) for one in candidates(plan) if one.key in SHARDS}
    for name in ("", *SHARDS):
        if name == SHARDED:
            return None
        remedies = known.get(name, ())
        alone = (("devices", 1), ("parallel", None), *(_STATELESS if name else ()))
        held = least(changed(plan, alone), inventory) if inventory is not None else 0
        if held + outside > divided.fit.limit:
            continue
        (answer,) = answers.predict([apply(plan, remedies)])
        if isinstance(answer, MemcalcError):
            continue
        there = Trials(answer, answers)
        if fitting(there.before) is None:
            return _fits(way, there, there.before, remedies)
    return None


def _fits(way: Way, trials: Trials, figures: Figures, remedies: tuple[Remedy, ...]) -> Suggestion:
    one = Suggestion(way=way, figures=figures, remedies=remedies)
    assert trials.plan.gpu is not None
    rate = speed(trials.prediction(figures.plan), gpus.find(trials.plan.gpu))
    return replace(one, no_speed=rate) if isinstance(rate, str) else replace(one, speed=rate)
