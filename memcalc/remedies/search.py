"""The cheapest combination of remedies that stays under a limit, each step really estimated.

Remedies are added in order of their cost until the plan fits with the smallest micro-batch; then
the micro-batch is made as large as it may be, and every remedy that turns out not to be needed is
taken out again. The plan that is left was itself estimated, and holds.
"""

from __future__ import annotations

from collections.abc import Sequence

from memcalc.remedies.records import Figures, Remedy, Search, Trial
from memcalc.remedies.table import accumulate, pieces_of
from memcalc.remedies.trials import Laboratory

_REPLACES = {
    "checkpointing": {"checkpointing/2"},
    "8-bit states": {"fused"},
    "bf16": {"amp", "bf16, corrected"},
    "bf16, corrected": {"amp", "fused", "8-bit states"},
}
"""What a remedy takes the place of, as both change the same setting."""


def rung_of(figures: Figures) -> str:
    """The highest rung that is known, which is what decides whether a plan fits."""
    for rung in ("process_used", "reserved"):
        if getattr(figures.peak, rung) is not None:
            return rung
    return "requested"


def needed(figures: Figures) -> int:
    """Bytes on the deciding rung; a process' with the high end of its context."""
    rung = rung_of(figures)
    size: int = getattr(figures.peak, rung)
    context = figures.context
    if rung == "process_used" and context is not None and context.likely is not None:
        size += context.high - context.likely
    return size


def search(
    laboratory: Laboratory, before: Figures, remedies: Sequence[Remedy], limit: int
) -> Search:
    """Find a plan that needs no more than ``limit`` bytes.

    Args:
        laboratory: estimates changed plans.
        before: figures of the plan as it is.
        remedies: what may be changed, cheapest first.
        limit: bytes of the deciding rung.
    """
    finder = _Finder(laboratory, limit)
    best = Trial(remedies=(), figures=before) if needed(before) <= limit else finder.find(remedies)
    return Search(limit=limit, rung=rung_of(before), trials=tuple(finder.trials), best=best)


def stages(remedies: Sequence[Remedy]) -> list[tuple[Remedy, ...]]:
    """Ever more remedies together, in order of cost.

    Cutting the batch is left out, and updating inside backward, which does not go with it.
    """
    found: list[tuple[Remedy, ...]] = []
    taken: list[Remedy] = []
    by_key = {remedy.key: remedy for remedy in remedies}
    for remedy in remedies:
        if remedy.key in ("accumulate", "bf16", "in backward"):
            continue
        added = [remedy]
        if remedy.key == "LoRA" and "bf16" in by_key:
            # The frozen weights lose no updates, and peft keeps the adapters in fp32.
            added = [by_key["bf16"], remedy]
        replaced = set().union(*(_REPLACES.get(one.key, set()) for one in added))
        taken = [*(one for one in taken if one.key not in replaced), *added]
        found.append(tuple(taken))
    free = [stage for stage in found if all(one.rank == 0 for one in stage)]
    return [*free[-1:], *found[len(free) :]] if free else [(), *found]


class _Finder:
    """One search; remembers what was tried."""

    def __init__(self, laboratory: Laboratory, limit: int) -> None:
        self.laboratory = laboratory
        self.limit = limit
        self.trials: list[Trial] = []
        self.pieces = pieces_of(laboratory.plan)

    def find(self, remedies: Sequence[Remedy]) -> Trial | None:
        inside = [remedy for remedy in remedies if remedy.key == "in backward"]
        for stage in stages(remedies):
            if self._holds(stage):
                return self._leanest(stage, 1)
            if inside and not self.pieces and self._holds([*stage, *inside]):
                return self._leanest([*stage, *inside], 1)
            if self.pieces and self._holds(self._cut(stage, self.pieces[-1])):
                return self._leanest(stage, self._fewest(stage))
        return None

    def _fewest(self, stage: Sequence[Remedy]) -> int:
        """The fewest pieces that hold, where all pieces hold and one does not."""
        low, high = 0, len(self.pieces) - 1
        while low < high:
            middle = (low + high) // 2
            if self._holds(self._cut(stage, self.pieces[middle])):
                high = middle
            else:
                low = middle + 1
        return self.pieces[high]

    def _leanest(self, stage: Sequence[Remedy], pieces: int) -> Trial:
        """Take out what is not needed, the most costly first.

        A remedy that adds memory where others are may be what another one is needed for, so
        what was kept is asked about again as long as anything goes.
        """
        needed, before = list(stage), None
        while needed != before:
            before = needed
            for remedy in sorted(needed, key=lambda one: -one.rank):
                fewer = [one for one in needed if one is not remedy]
                if self._holds(self._cut(fewer, pieces)):
                    needed = fewer
        return self._try(self._cut(needed, pieces))

    def _cut(self, stage: Sequence[Remedy], pieces: int) -> list[Remedy]:
        if pieces == 1:
            return list(stage)
        return sorted([*stage, accumulate(self.laboratory.plan, pieces)], key=lambda one: one.rank)

    def _holds(self, stage: Sequence[Remedy]) -> bool:
        figures = self._try(stage).figures
        return figures is not None and needed(figures) <= self.limit

    def _try(self, stage: Sequence[Remedy]) -> Trial:
        trial = self.laboratory.try_out(stage)
        if trial not in self.trials:
            self.trials.append(trial)
        return trial
