"""The timeline of the steady step by component, and the run as a memory snapshot."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Self

import msgspec
from msgspec.structs import replace

from memcalc.errors import UsageError
from memcalc.estimation.kept import Traced
from memcalc.estimation.question import look_up
from memcalc.estimation.replays import list_calls, roomy_card
from memcalc.files.snapshot_writer import save_snapshot
from memcalc.records.levels import Levels
from memcalc.records.plan import Plan
from memcalc.records.replay import Play, Replay, Wanted
from memcalc.records.trace import Component, Phase, Trace, program_end, walk
from memcalc.units import signed_bytes


class Stretch(msgspec.Struct, frozen=True, kw_only=True):
    """A phase between two moments, the second one not included."""

    phase: Phase
    begin: int
    end: int


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """Levels right after each event of one step, in bytes; all lists have the same length."""

    components: dict[Component, tuple[int, ...]]
    """Requested bytes; at each moment they sum to ``requested``."""
    requested: tuple[int, ...]
    allocated: tuple[int, ...] | None
    """``None``: the run has no caching allocator."""
    reserved: tuple[int, ...] | None
    phases: tuple[Stretch, ...]
    made: tuple[str, ...]
    """What each event was: module, operator, and bytes more or less."""
    events: int
    """How many moments there were before any were left out."""

    @property
    def peak(self) -> int:
        """The index of the event with the most requested bytes."""
        return max(range(len(self.requested)), key=self.requested.__getitem__)

    def at(self, moments: Sequence[int], phases: Iterable[Stretch]) -> Self:
        """Return the timeline with only the events at these indices, and these phases."""

        def select(levels: tuple[int, ...] | None) -> tuple[int, ...] | None:
            return None if levels is None else tuple(levels[one] for one in moments)

        return replace(
            self,
            components={name: select(band) for name, band in self.components.items()},
            requested=select(self.requested),
            allocated=select(self.allocated),
            reserved=select(self.reserved),
            made=tuple(self.made[one] for one in moments),
            phases=tuple(phases),
        )


def timeline(trace: Trace, plan: Plan, play: Play) -> Timeline:
    """Return memory levels after each event of the steady step, or of a whole script."""
    trace = _cut_at_program_end(trace)
    components = dict.fromkeys(Component, 0)
    bands: dict[Component, list[int]] = {component: [] for component in Component}
    stretches: list[Stretch] = []
    made: list[str] = []
    first: int | None = None
    for number, (mark, event, storage) in enumerate(walk(trace)):
        size = storage.bytes if event >= 0 else -storage.bytes
        components[storage.component] += size
        if mark.step != trace.steps - 1 and not trace.whole:
            continue
        first = number if first is None else first
        here = len(made)
        if stretches and stretches[-1].phase is mark.phase:
            stretches[-1] = replace(stretches[-1], end=here + 1)
        else:
            stretches.append(Stretch(phase=mark.phase, begin=here, end=here + 1))
        name = storage.component.value.replace("_", " ")
        maker = " ".join(part for part in (storage.module, storage.op) if part) or name
        made.append(f"{maker} {signed_bytes(size)}")
        for component, band in bands.items():
            band.append(components[component])
    levels: tuple[Levels, ...] | None = None
    if plan.target != "cpu":
        levels = _replay_trace(trace, plan, play, Wanted(levels=first)).levels
    return Timeline(
        components={name: tuple(band) for name, band in bands.items() if any(band)},
        requested=tuple(map(sum, zip(*bands.values(), strict=True))),
        allocated=None if levels is None else tuple(one.allocated for one in levels),
        reserved=None if levels is None else tuple(one.reserved for one in levels),
        phases=tuple(stretches),
        made=tuple(made),
        events=len(made),
    )


def _cut_at_program_end(trace: Trace) -> Trace:
    """Return the trace without the frees at interpreter exit."""
    return replace(trace, events=trace.events[: program_end(trace)])


def _replay_trace(trace: Trace, plan: Plan, play: Play, wanted: Wanted) -> Replay:
    """Replay a trace's allocations on a card of unlimited memory."""
    (found,) = play(list(list_calls(trace)), [roomy_card(look_up(plan))], wanted)
    return found


def thin(line: Timeline, moments: int) -> Timeline:
    """Return the timeline with at most this many events: the highest of each equal stretch."""
    count = len(line.requested)
    if count <= moments:
        return line
    edges = [count * number // moments for number in range(moments + 1)]
    keep = [
        max(range(begin, end), key=line.requested.__getitem__) for begin, end in pairwise(edges)
    ]
    # A stretch begins in the bin that holds its first moment.
    starts = [bisect_right(edges, stretch.begin) - 1 for stretch in line.phases]
    phases = (
        Stretch(phase=stretch.phase, begin=begin, end=end)
        for stretch, begin, end in zip(line.phases, starts, [*starts[1:], moments], strict=True)
    )
    return line.at(keep, phases)


def save_predicted_snapshot(traced: Traced, path: Path, play: Play) -> None:
    """Write a predicted CUDA memory snapshot file for pytorch.org/memory_viz.

    Raises:
        UsageError: a CPU run has no CUDA memory, or the file cannot be written.
    """
    plan, trace = traced.prediction.plan, _cut_at_program_end(traced.trace)
    if plan.target == "cpu":
        raise UsageError("A CPU run has no CUDA memory snapshot: leave --target cpu out.")
    snapshot = _replay_trace(trace, plan, play, Wanted(snapshot=True)).snapshot
    assert snapshot is not None
    save_snapshot(snapshot, trace, path)
