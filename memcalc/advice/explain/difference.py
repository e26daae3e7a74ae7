"""The difference of two answers: by component, phase and module."""

from collections import Counter
from collections.abc import Mapping

import msgspec

from memcalc.advice.explain.explain import Chapter
from memcalc.advice.explain.records import PeakContents
from memcalc.records.display import Answer
from memcalc.records.fields import changed_settings, plan_changes, version_changes
from memcalc.records.prediction import RUNGS, Prediction


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A figure in bytes, before and now, each None where it is unknown."""

    name: str
    before: int | None
    now: int | None

    @property
    def by(self) -> int | None:
        """The growth in bytes (now - before), or None if either is unknown."""
        return None if self.before is None or self.now is None else self.now - self.before


class Difference(Answer, msgspec.Struct, frozen=True, kw_only=True):
    """The changes from one answer to another."""

    before: Prediction
    now: Prediction
    settings: tuple[str, ...]
    """Of the plan, such as ``batch 8 -> 16``."""
    versions: tuple[str, ...]
    """Of libraries, such as ``torch 2.12.0 then, 2.13.0 now``."""
    rungs: tuple[Change, ...]
    """The ladder at the peak."""
    components: tuple[Change, ...]
    """Of what is held at the peak, the largest change first; they sum to that of requested."""
    phases: tuple[Change, ...]
    """Allocated peak of each phase; requested, where that is all that is known of one."""
    kinds: tuple[Change, ...]
    """Kinds of storage at the peak that changed, by component, module and operator, the largest
    change first; empty where a trace is missing."""

    @property
    def same(self) -> bool:
        """True if no figure changed."""
        changes = (*self.rungs, *self.components, *self.phases)
        return all(change.before == change.now for change in changes)


def difference(before: Chapter, now: Chapter) -> Difference:
    """Compare two estimates: settings, versions, peaks, components, phases, storage groups."""
    old, new = before.prediction, now.prediction
    kinds: tuple[Change, ...] = ()
    if before.peak is not None and now.peak is not None:
        changes = _compare_by_name(_sum_by_name(before.peak), _sum_by_name(now.peak))
        kinds = tuple(change for change in changes if change.by)
    return Difference(
        before=old,
        now=new,
        settings=tuple(plan_changes(changed_settings(old.plan), changed_settings(new.plan))),
        versions=tuple(version_changes(old.versions, new.versions)),
        rungs=tuple(
            Change(name=rung, before=getattr(old.peak, rung), now=getattr(new.peak, rung))
            for rung in RUNGS
        ),
        components=_compare_by_name(
            {name.value: size for name, size in old.components.items()},
            {name.value: size for name, size in new.components.items()},
        ),
        phases=_compare_phases(old, new),
        kinds=kinds,
    )


def _compare_by_name(before: Mapping[str, int], now: Mapping[str, int]) -> tuple[Change, ...]:
    """Compare two tables of sizes (0 where missing), the largest absolute change first."""
    found = [
        Change(name=name, before=before.get(name, 0), now=now.get(name, 0))
        for name in dict.fromkeys((*before, *now))
    ]
    return tuple(sorted(found, key=lambda change: -abs(change.by or 0)))


def _compare_phases(old: Prediction, new: Prediction) -> tuple[Change, ...]:
    """Compare each phase's peak of two estimates: allocated bytes, or requested if unknown."""
    known = old.peak.allocated is not None and new.peak.allocated is not None
    rung = "allocated" if known else "requested"
    before, now = (
        {phase.phase.value: getattr(phase, rung) for phase in one.phases} for one in (old, new)
    )
    return tuple(
        Change(name=name, before=before.get(name), now=now.get(name))
        for name in dict.fromkeys((*before, *now))
    )


def _sum_by_name(peak: PeakContents) -> dict[str, int]:
    """Return the bytes alive at a peak by "component: module operator"."""
    found = Counter[str]()
    for group in peak.groups:
        # peft wraps a model in two modules of these names: the same layer is the same.
        module = group.module.removeprefix("base_model.model.")
        made = " ".join(part for part in (module, group.op) if part) or "the loss"
        found[f"{group.component.value.replace('_', ' ')}: {made}"] += group.bytes
    return found
