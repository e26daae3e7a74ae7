"""Searches the cheapest combination of remedies within a limit, estimating each.

Remedies are added in order of their cost until the plan holds with the smallest micro-batch; then
the micro-batch is made as large as it may be, and every remedy that is not needed is taken out
again. On the way two micro-batches represent all of a step, which are alike. The plan that remains
was itself estimated in full, and holds. A plan that cannot hold, because weights, gradients and
optimizer state alone are too large, is not estimated.
"""

import math
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from memcalc.advice.remedies import rows
from memcalc.advice.remedies.records import Figures, Goal, Remedy, Search, Trial
from memcalc.advice.remedies.rows import accumulate, accumulate_two, list_pieces
from memcalc.advice.remedies.trials import Trials, apply
from memcalc.advice.search import Sample, largest
from memcalc.errors import MemcalcError
from memcalc.estimation.analytic import least
from memcalc.estimation.question import look_up
from memcalc.records.model import Inventory
from memcalc.records.plan import Plan


def search(
    trials: Trials, remedies: Sequence[Remedy], goal: Goal, inventory: Inventory | None = None
) -> Search:
    """Find the cheapest combination of remedies that reaches a goal."""
    finder = _Finder(trials, goal, inventory)
    if goal.holds(trials.before):
        best: Trial | None = Trial(remedies=(), figures=trials.before)
    else:
        best = finder.find([one for one in remedies if one.unfit is None])
    return Search(
        limit=goal.limit,
        rung=goal.rung,
        trials=tuple(finder.trials),
        best=best,
        ruled_out=len(finder.ruled_out),
    )


def stages(remedies: Sequence[Remedy]) -> list[tuple[Remedy, ...]]:
    """Return growing sets of remedies by cost; a later remedy replaces one of the same field.

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
    """A search that remembers its trials."""

    def __init__(self, trials: Trials, goal: Goal, inventory: Inventory | None) -> None:
        self.goal = goal
        self.trials: list[Trial] = []
        self.ruled_out: set[Plan] = set()
        self._possible: set[Plan] = set()
        self._requested: dict[Plan, int] = {}
        """Requested bytes of plans that were tried, by the plan without allocator settings."""
        self._trier = trials
        self._inventory = inventory
        self._known: dict[tuple[Remedy, ...], Trial] = {(): Trial(figures=trials.before)}
        self._broken: set[str] = set()
        self._part = accumulate_two
        """Makes the remedy that represents a batch cut in pieces."""
        self._pieces = list_pieces(trials.plan)

    def find(self, remedies: Sequence[Remedy]) -> Trial | None:
        """Find the cheapest combination that reaches the goal, without remedies that fail alone."""
        if not any(remedy.key == "accumulate" for remedy in remedies):
            self._pieces = []
        while True:
            known = len(self._broken)
            found = self._find_first_stage([one for one in remedies if one.key not in self._broken])
            # What cannot run at all makes every stage fail that it is part of.
            if found is not None or len(self._broken) == known:
                return found

    def _find_first_stage(self, remedies: Sequence[Remedy]) -> Trial | None:
        """Return the first of growing remedy sets that reaches the goal, reduced, or None."""
        inside = [remedy for remedy in remedies if remedy.key == "in backward"]
        found = stages(remedies)
        for number, stage in enumerate(found):
            ways: list[tuple[Sequence[Remedy], int]] = [(stage, 1)]
            if inside and not self._pieces:
                ways.append(((*stage, *inside), 1))
            if self._pieces:
                ways.append((stage, self._pieces[-1]))
            for way, pieces in ways:
                whole = self._split_batch(way, pieces)
                if self._is_ruled_out(whole):
                    continue
                # Beside it the next questions: those if it does not hold, and those if the last
                # one does.
                after = found[number + 1 :] or [_drop(way, one) for one in _sort_by_cost(way)]
                self._run_ahead([whole, *(self._split_batch(one, pieces) for one in after)])
                if self._known[whole].figures is None:
                    # What fails by itself is left out; where nothing does, what was added last.
                    self._estimate_stages([(remedy,) for remedy in whole])
                    alone = {one.key for one in whole if self._known[(one,)].figures is None}
                    self._broken |= alone or {max(whole, key=lambda one: one.rank).key}
                    return None
                if self._holds(whole):
                    least = self._shrink(way, pieces)
                    if least is not None:
                        return least
        return None

    def _shrink(self, stage: Sequence[Remedy], pieces: int) -> Trial | None:
        """Drop remedies and micro-batches a set does not need; None if it misses the goal."""
        for part in (accumulate_two, accumulate):
            self._part = part
            if pieces > 1 and not self._holds(self._split_batch(stage, pieces)):
                break
            fewest = self._find_fewest_pieces(stage) if pieces > 1 else 1
            kept = self._reduce_stage(stage, fewest)
            self._part = accumulate
            whole = self._split_batch(kept, fewest)
            if self._holds(whole):
                return self._known[whole]
        self._part = accumulate_two
        return None

    def _find_fewest_pieces(self, stage: Sequence[Remedy]) -> int:
        """Return the fewest micro-batches with which a remedy set reaches the goal."""
        # The whole batch does not hold, which bounds the others.
        pieces = {self._trier.plan.batch // n: n for n in reversed((1, *self._pieces))}

        def ask(batch: int) -> Sample:
            """Estimate the remedies with this micro-batch: goal reached, bytes to spare."""
            cut = self._split_batch(stage, pieces[batch])
            holds = self._holds(cut)
            figures = self._figures(cut)
            spare = self.goal.limit - figures.needed if figures is not None else None
            return Sample(holds=holds, spare=spare)

        # The smallest has been run.
        best = largest(ask, tuple(pieces), 1, confirm=False).best
        assert best is not None
        return pieces[best]

    def _figures(self, stage: tuple[Remedy, ...]) -> Figures | None:
        """Return the known figures of a remedy set, with or without expandable segments."""
        plain = tuple(one for one in stage if one.key != "expandable")
        found = self._known.get(stage) or self._known.get(plain)
        return found.figures if found is not None else None

    def _reduce_stage(self, stage: Sequence[Remedy], pieces: int) -> Sequence[Remedy]:
        """Return a remedy set without those it can do without, costliest dropped first.

        Free remedies stay, unless they are enough alone: then they are asked about too. If a remedy
        that was taken out had added memory, others may have been needed for that, and are asked
        about again.
        """
        kept, again = tuple(stage), True
        if not any(one.rank for one in kept) and self._holds(self._split_batch((), pieces)):
            return ()
        while again:
            again = False
            order = _sort_by_cost(kept)
            for number, one in enumerate(order):
                self._run_ahead([self._split_batch(_drop(kept, o), pieces) for o in order[number:]])
                fewer = _drop(kept, one)
                if self._holds(self._split_batch(fewer, pieces)):
                    again = again or self._get_bytes(fewer, pieces) < self._get_bytes(kept, pieces)
                    kept = fewer
        return kept

    def _get_bytes(self, stage: Sequence[Remedy], pieces: int) -> int:
        """Return the bytes needed with a remedy set that was estimated."""
        figures = self._known[self._split_batch(stage, pieces)].figures
        assert figures is not None
        return figures.needed

    def _split_batch(self, stage: Sequence[Remedy], pieces: int) -> tuple[Remedy, ...]:
        """Return the remedy set plus the split of the batch into ``pieces`` parts."""
        if pieces == 1:
            return tuple(stage)
        both = [*stage, self._part(self._trier.plan, pieces)]
        return tuple(sorted(both, key=lambda one: one.rank))

    def _holds(self, stage: tuple[Remedy, ...]) -> bool:
        """Return True if an estimate with these remedies reaches the goal."""
        if self._is_ruled_out(stage):
            return False
        self._estimate_stages([stage])
        figures = self._known[stage].figures
        return figures is not None and self.goal.holds(figures)

    def _is_ruled_out(self, stage: Sequence[Remedy]) -> bool:
        """Return True if a lower bound shows, without a run, that the goal is missed."""
        if self.goal.outside is None:
            return False
        room = self.goal.limit - self.goal.outside
        try:
            plan = apply(self._trier.plan, *stage)
            run = replace(plan, alloc_conf="")
            if run in self._requested:
                return self._requested[run] > room
            if plan not in self._possible | self.ruled_out:
                before = self._trier.before.peak.requested
                too_large = before - self._trier.bound_savings(stage) > room
                if not too_large and self._inventory is not None:
                    too_large = least(plan, self._inventory) > room
                (self.ruled_out if too_large else self._possible).add(plan)
        except MemcalcError:
            # The trial says why.
            return False
        return plan in self.ruled_out

    def _run_ahead(self, stages: Sequence[tuple[Remedy, ...]]) -> None:
        """Estimate the first of these remedy sets not ruled out, up to ``at_once`` of them."""
        open_ = [stage for stage in dict.fromkeys(stages) if not self._is_ruled_out(stage)]
        self._estimate_stages(open_[: self._trier.at_once])

    def _estimate_stages(self, stages: Sequence[tuple[Remedy, ...]]) -> None:
        """Estimate the remedy sets not estimated yet and store their trials."""
        # Expandable segments are a replay of the run without them: one run answers for both.
        twins = [_drop(stage, one) for stage in stages for one in stage if one.key == "expandable"]
        fresh = [stage for stage in (*stages, *twins) if stage not in self._known]
        for stage, trial in zip(fresh, self._trier.each(fresh) if fresh else (), strict=True):
            self._known[stage] = trial
            if trial.figures is not None:
                run = replace(trial.figures.plan, alloc_conf="")
                self._requested[run] = trial.figures.peak.requested
            if trial not in self.trials:
                self.trials.append(trial)


def _sort_by_cost(stage: Sequence[Remedy]) -> list[Remedy]:
    """Return the remedies that may be dropped (free ones if no others), costliest first."""
    costly = [one for one in stage if one.rank]
    return sorted(costly or stage, key=lambda one: -one.rank)


def _drop(stage: Sequence[Remedy], taken: Remedy) -> tuple[Remedy, ...]:
    return tuple(one for one in stage if one is not taken)


_WORTH = 0.05
"""Share of the peak from which a screen has room for what a remedy saves."""
_TRAINS_THE_SAME = 5
"""The last rank of remedies that change no weights: optimizer state in 8 bit."""
Seen = Callable[[tuple[Trial, ...], Search | None], None]
"""Called with all that is known so far, each time that there is more."""


def advise(
    trials: Trials,
    goal: Goal | None,
    *,
    alone: bool = True,
    most: int | None = None,
    seen: Seen = lambda tried, found: None,
) -> tuple[tuple[Trial, ...], Search | None]:
    """Search a combination of remedies that reaches the goal, then try each remedy alone.

    Args:
        trials: tries the changes of a plan.
        goal: the limit to reach; None: no search.
        alone: False: only search.
        most: stop after this many remedies that help, cheapest first, and try none that saves
            little or costs more than the plan that was found; None: try all.
        seen: called whenever more is known.

    Returns:
        A trial of each remedy, the largest saving first and failed ones last; and the search.
    """
    listed = candidates(trials.plan)
    found = search(trials, listed, goal, trials.inventory) if goal else None
    if most is not None:
        listed = _keep_useful(listed, trials, found)
    tried: tuple[Trial, ...] = ()
    if found is not None:
        seen(tried, found)
    for first in range(0, len(listed), trials.at_once) if alone else ():
        for trial in trials.each([[one] for one in listed[first : first + trials.at_once]]):
            tried = tuple(sorted((*tried, trial), key=trials.sort_key))
            seen(tried, found)
        if most is not None and sum(trials.sort_key(one) < 0 for one in tried) >= most:
            break
    return tried, found


def _keep_useful(remedies: Sequence[Remedy], trials: Trials, found: Search | None) -> list[Remedy]:
    """Return the remedies whose possible saving is worth an estimate, and not too costly."""
    least = _WORTH * trials.before.peak.requested
    dearest: float = _TRAINS_THE_SAME
    if trials.plan.infers or (found is not None and found.best is None):
        dearest = math.inf
    elif found is not None and found.best is not None:
        dearest = max(dearest, *(one.rank for one in found.best.remedies))
    return [
        one
        for one in remedies
        if one.unfit is None
        and one.rank <= dearest
        # Its run is a replay of the plan's own.
        and (one.key == "expandable" or trials.bound_savings([one]) >= least)
    ]


def candidates(plan: Plan) -> list[Remedy]:
    """Return all remedies that apply to a plan, cheapest first.

    Raises:
        UsageError: the plan names a model or task that is not known.
    """
    if plan.command:
        return []
    task = look_up(plan).head.task
    if plan.infers:
        found = [*rows.of_kernels(plan), *rows.of_weights(plan)]
    else:
        found = [
            *rows.of_step(plan),
            *rows.of_kernels(plan),
            *rows.of_pieces(plan, task),
            *rows.of_layouts(plan),
            *rows.of_losses(plan, task),
            *rows.of_backward(plan),
            *rows.of_precision(plan),
            *rows.of_adapters(plan),
        ]
    return sorted(found, key=lambda remedy: remedy.rank)
