"""Searches the cheapest combination of remedies within a limit, estimating each.

Remedies are added in order of their cost until the plan holds with the smallest micro-batch; then
the micro-batch is made as large as it may be, and every remedy that turns out not to be needed is
taken out again. On the way two micro-batches stand for all of a step, which are alike. The plan
that is left was itself estimated in full, and holds. What cannot hold, because weights, gradients
and optimizer state alone are too large, is not estimated.
"""

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from memcalc.advice.remedies.records import Figures, Goal, Option, Remedy, Search, Trial, needed
from memcalc.advice.remedies.rows import lower_precision, same_result
from memcalc.advice.remedies.rows.same_result import accumulate, pieces_of, two_of
from memcalc.advice.remedies.trials import Trials, apply
from memcalc.advice.search import Sample, largest
from memcalc.catalog import models
from memcalc.errors import MemcalcError
from memcalc.estimation.analytic import least
from memcalc.records.model import Inventory
from memcalc.records.plan import Plan
from memcalc.workload import tasks

Found = tuple[Trial, Sequence[Remedy]]
"""What holds, and the remedies that it is made of."""


def search(
    trials: Trials,
    before: Figures,
    remedies: Sequence[Remedy],
    goal: Goal,
    inventory: Inventory | None = None,
) -> Search:
    """Find the cheapest plan that reaches a goal; the inventory rules plans out without a run."""
    finder = _Finder(trials, goal, inventory)
    if goal.holds(before):
        best: Trial | None = Trial(remedies=(), figures=before)
        kept: Sequence[Remedy] = ()
    else:
        best, kept = finder.find([one for one in remedies if one.unfit is None]) or (None, ())
    return Search(
        limit=goal.limit,
        rung=goal.rung,
        trials=tuple(finder.trials),
        best=best,
        remedies=tuple(kept),
        ruled_out=len(finder.ruled_out),
    )


def stages(remedies: Sequence[Remedy]) -> list[tuple[Remedy, ...]]:
    """Ever more remedies together, in order of cost; a later one replaces what sets the same.

    Cutting the batch is left out, and updating inside backward, which does not go with it.
    """
    found: list[tuple[Remedy, ...]] = []
    taken: list[Remedy] = []
    by_key = {remedy.key: remedy for remedy in remedies}
    for remedy in remedies:
        if remedy.key in ("accumulate", "bf16", "in backward"):
            continue
        # The frozen weights lose no updates, and peft keeps the adapters in fp32.
        added = [by_key["bf16"], remedy] if remedy.key == "LoRA" and "bf16" in by_key else [remedy]
        fields = {field for one in added for field, _ in one.changes}
        taken = [one for one in taken if fields.isdisjoint(field for field, _ in one.changes)]
        taken += added
        found.append(tuple(taken))
    free = [stage for stage in found if all(one.rank == 0 for one in stage)]
    return [*free[-1:], *found[len(free) :]] if free else [(), *found]


class _Finder:
    """One search; remembers what was tried."""

    def __init__(self, trials: Trials, goal: Goal, inventory: Inventory | None) -> None:
        self.goal = goal
        self.trials: list[Trial] = []
        self.ruled_out: set[Plan] = set()
        self._possible: set[Plan] = set()
        self._requested: dict[Plan, int] = {}
        """Of plans that were tried, whatever the allocator made of what they asked for."""
        self._trier = trials
        self._inventory = inventory
        self._known: dict[tuple[Remedy, ...], Trial] = {}
        self._broken: set[str] = set()
        self._part = two_of
        """What stands for a batch cut in pieces."""
        self._pieces = pieces_of(trials.plan)

    def find(self, remedies: Sequence[Remedy]) -> Found | None:
        """The cheapest combination, and what it was found to come to."""
        if not any(remedy.key == "accumulate" for remedy in remedies):
            self._pieces = []
        while True:
            known = len(self._broken)
            found = self._first([one for one in remedies if one.key not in self._broken])
            # What cannot run at all makes every stage fail that it is part of.
            if found is not None or len(self._broken) == known:
                return found

    def _first(self, remedies: Sequence[Remedy]) -> Found | None:
        """The first stage that holds; each as it is, updated inside backward, and cut."""
        inside = [remedy for remedy in remedies if remedy.key == "in backward"]
        found = stages(remedies)
        for number, stage in enumerate(found):
            ways: list[tuple[Sequence[Remedy], int]] = [(stage, 1)]
            if inside and not self._pieces:
                ways.append(((*stage, *inside), 1))
            if self._pieces:
                ways.append((stage, self._pieces[-1]))
            for way, pieces in ways:
                whole = self._cut(way, pieces)
                if self._is_ruled_out(whole):
                    continue
                # Beside it what is asked next: if it does not hold, and where it is the last, if
                # it does.
                after = found[number + 1 :] or [_without(way, one) for one in _dearest(way)]
                self._prepare([whole, *(self._cut(one, pieces) for one in after)])
                if self._known[whole].figures is None:
                    # What fails by itself is left out; where nothing does, what was added last.
                    self._estimate([(remedy,) for remedy in whole])
                    alone = {one.key for one in whole if self._known[(one,)].figures is None}
                    self._broken |= alone or {max(whole, key=lambda one: one.rank).key}
                    return None
                if self._holds(whole):
                    settled = self._settled(way, pieces)
                    if settled is not None:
                        return settled
        return None

    def _settled(self, stage: Sequence[Remedy], pieces: int) -> Found | None:
        """The least of a stage that holds, in full; ``None`` where two micro-batches misled."""
        for part in (two_of, accumulate):
            self._part = part
            if pieces > 1 and not self._holds(self._cut(stage, pieces)):
                break
            fewest = self._fewest(stage) if pieces > 1 else 1
            kept = self._leanest(stage, fewest)
            self._part = accumulate
            whole = self._cut(kept, fewest)
            if self._holds(whole):
                return self._known[whole], whole
        self._part = two_of
        return None

    def _fewest(self, stage: Sequence[Remedy]) -> int:
        """The fewest pieces that hold, where all pieces hold and one does not."""
        pieces = {self._trier.plan.batch // n: n for n in reversed(self._pieces)}

        def ask(batch: int) -> Sample:
            cut = self._cut(stage, pieces[batch])
            holds = self._holds(cut)
            figures = self._known[cut].figures if cut in self._known else None
            spare = self.goal.limit - needed(figures) if figures is not None else None
            return Sample(holds=holds, spare=spare)

        # The smallest has been run.
        best = largest(ask, tuple(pieces), 1).best
        assert best is not None
        return pieces[best]

    def _leanest(self, stage: Sequence[Remedy], pieces: int) -> Sequence[Remedy]:
        """Take out what is not needed, the most costly first.

        What costs nothing stays, unless it is enough by itself: then it is asked about too. Where
        what was taken out had added memory, others may have been needed for that, and are asked
        about again.
        """
        kept, again = tuple(stage), True
        if not any(one.rank for one in kept) and self._holds(self._cut((), pieces)):
            return ()
        while again:
            again = False
            order = _dearest(kept)
            for number, one in enumerate(order):
                self._prepare([self._cut(_without(kept, o), pieces) for o in order[number:]])
                fewer = _without(kept, one)
                if self._holds(self._cut(fewer, pieces)):
                    again = again or self._needed(fewer, pieces) < self._needed(kept, pieces)
                    kept = fewer
        return kept

    def _needed(self, stage: Sequence[Remedy], pieces: int) -> int:
        figures = self._known[self._cut(stage, pieces)].figures
        assert figures is not None
        return needed(figures)

    def _cut(self, stage: Sequence[Remedy], pieces: int) -> tuple[Remedy, ...]:
        if pieces == 1:
            return tuple(stage)
        both = [*stage, self._part(self._trier.plan, pieces)]
        return tuple(sorted(both, key=lambda one: one.rank))

    def _holds(self, stage: tuple[Remedy, ...]) -> bool:
        if self._is_ruled_out(stage):
            return False
        self._estimate([stage])
        figures = self._known[stage].figures
        return figures is not None and self.goal.holds(figures)

    def _is_ruled_out(self, stage: Sequence[Remedy]) -> bool:
        if self._inventory is None or self.goal.outside is None:
            return False
        try:
            plan = apply(self._trier.plan, stage)
            run = replace(plan, alloc_conf="")
            if run in self._requested:
                return self._requested[run] + self.goal.outside > self.goal.limit
            if plan not in self._possible | self.ruled_out:
                size = least(plan, self._inventory) + self.goal.outside
                (self.ruled_out if size > self.goal.limit else self._possible).add(plan)
        except MemcalcError:
            # Whoever tries it is told why.
            return False
        return plan in self.ruled_out

    def _prepare(self, stages: Sequence[tuple[Remedy, ...]]) -> None:
        """Estimate the first of these that may hold, and the next ones beside it."""
        open_ = [stage for stage in dict.fromkeys(stages) if not self._is_ruled_out(stage)]
        self._estimate(open_[: self._trier.side_by_side])

    def _estimate(self, stages: Sequence[tuple[Remedy, ...]]) -> None:
        fresh = [stage for stage in stages if stage not in self._known]
        for stage, trial in zip(fresh, self._trier.each(fresh) if fresh else (), strict=True):
            self._known[stage] = trial
            if trial.figures is not None:
                run = replace(trial.figures.plan, alloc_conf="")
                self._requested[run] = trial.figures.peak.requested
            if trial not in self.trials:
                self.trials.append(trial)


def _dearest(stage: Sequence[Remedy]) -> list[Remedy]:
    """What may be taken out of a stage, the most costly first."""
    costly = [one for one in stage if one.rank]
    return sorted(costly or stage, key=lambda one: -one.rank)


def _without(stage: Sequence[Remedy], taken: Remedy) -> tuple[Remedy, ...]:
    return tuple(one for one in stage if one is not taken)


Seen = Callable[[tuple[Option, ...], Search | None], None]
"""Called with all that is known so far, each time that there is more."""


def advise(
    trials: Trials,
    goal: Goal | None,
    *,
    by_itself: bool = True,
    most: int | None = None,
    seen: Seen = lambda options, found: None,
) -> tuple[tuple[Option, ...], Search | None]:
    """Find what reaches the goal, if any; then try each remedy of the plan alone (``by_itself``).

    ``most``: remedies that help, cheapest first, after which no more are tried; None: all are. The
    largest saving comes first; what could not be tried is last, with its reason.
    """
    rows = candidates(trials.plan)
    found = search(trials, trials.before, rows, goal, trials.inventory) if goal else None
    options: tuple[Option, ...] = ()
    if found is not None:
        seen(options, found)
    for first in range(0, len(rows), trials.side_by_side) if by_itself else ():
        for option in trials.options(rows[first : first + trials.side_by_side]):
            options = tuple(sorted((*options, option), key=trials.saving))
            seen(options, found)
        if most is not None and sum(trials.saving(one) < 0 for one in options) >= most:
            break
    return options, found


def candidates(plan: Plan) -> list[Remedy]:
    """The remedies of a plan, cheapest first; what it does already is left out.

    Raises:
        UsageError: the plan names a model or task that is not known.
    """
    if plan.command:
        return []
    task = tasks.choose(models.find(plan.model), plan.task).task
    if plan.infers:
        found = [*same_result.of_kernels(plan), *lower_precision.of_inference(plan)]
    else:
        found = [
            *same_result.of_training(plan),
            *same_result.of_kernels(plan),
            *same_result.of_pieces(plan, task),
            *same_result.of_layouts(plan),
            *same_result.of_losses(plan, task),
            *same_result.of_backward(plan),
            *lower_precision.of_training(plan),
            *lower_precision.of_adapters(plan),
        ]
    return sorted(found, key=lambda remedy: remedy.rank)
