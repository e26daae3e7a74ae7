"""The timeline of the steady step by component, and the run as a memory snapshot."""

from bisect import bisect_right
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import msgspec
from msgspec.structs import replace

from memcalc.allocator.caching import CachingAllocator
from memcalc.allocator.levels import Levels
from memcalc.allocator.replay import Op, Player
from memcalc.allocator.settings import AllocatorSettings, parse_alloc_conf
from memcalc.allocator.snapshot_writer import Frame, predicted_snapshot, save_snapshot
from memcalc.allocator.state import DeviceMemory
from memcalc.errors import UsageError
from memcalc.estimation.estimate import Traced
from memcalc.estimation.question import version_of
from memcalc.estimation.replays import UNLIMITED, as_it_ran
from memcalc.records.plan import Plan
from memcalc.records.trace import Component, Phase, Storage, Trace, program_end
from memcalc.units import signed_bytes


class Stretch(msgspec.Struct, frozen=True, kw_only=True):
    """A phase between two moments, the second one not included."""

    phase: Phase
    begin: int
    end: int


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """Levels right after each event of one step, in bytes; all lists are of the same length."""

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
        """The moment with the most requested bytes."""
        return max(range(len(self.requested)), key=self.requested.__getitem__)

    def at(self, moments: Sequence[int], phases: Iterable[Stretch]) -> Self:
        """These moments alone, in their phases."""

        def of(levels: tuple[int, ...] | None) -> tuple[int, ...] | None:
            return None if levels is None else tuple(levels[one] for one in moments)

        return replace(
            self,
            components={name: of(band) for name, band in self.components.items()},
            requested=of(self.requested),
            allocated=of(self.allocated),
            reserved=of(self.reserved),
            made=tuple(self.made[one] for one in moments),
            phases=tuple(phases),
        )


def timeline(trace: Trace, plan: Plan) -> Timeline:
    """Follow the steady step of a trace event by event, or all that a script did."""
    levels = dict.fromkeys(Component, 0)
    bands: dict[Component, list[int]] = {component: [] for component in Component}
    rungs: list[Levels] = []
    stretches: list[Stretch] = []
    made: list[str] = []
    steady = trace.steps - 1
    for step, phase, storage, size, held in _played(trace, plan):
        levels[storage.component] += size
        if step != steady and not trace.whole:
            continue
        here = len(rungs)
        if stretches and stretches[-1].phase is phase:
            stretches[-1] = replace(stretches[-1], end=here + 1)
        else:
            stretches.append(Stretch(phase=phase, begin=here, end=here + 1))
        rungs.append(held)
        name = storage.component.value.replace("_", " ")
        maker = " ".join(part for part in (storage.module, storage.op) if part) or name
        made.append(f"{maker} {signed_bytes(size)}")
        for component, band in bands.items():
            band.append(levels[component])
    device = plan.target != "cpu"
    return Timeline(
        components={name: tuple(band) for name, band in bands.items() if any(band)},
        requested=tuple(map(sum, zip(*bands.values(), strict=True))),
        allocated=tuple(held.allocated for held in rungs) if device else None,
        reserved=tuple(held.reserved for held in rungs) if device else None,
        phases=tuple(stretches),
        made=tuple(made),
        events=len(rungs),
    )


def _played(trace: Trace, plan: Plan) -> Iterator[tuple[int, Phase, Storage, int, Levels]]:
    """Each event as the allocator serves it: when, of what, bytes more or less, and the levels."""
    player = Player(CachingAllocator(settings_of(plan, trace), DeviceMemory(UNLIMITED)))
    step, phase = 0, Phase.LOAD
    for event in as_it_ran(replace(trace, events=trace.events[: program_end(trace)])):
        player.play((event,))
        key, what, *_ = event
        if key is Op.MARK:
            step, phase = what
        elif not isinstance(key, Op):
            storage = trace.storages[key % len(trace.storages)]
            change = storage.bytes if what else -storage.bytes
            yield step, phase, storage, change, player.allocator.levels()


def thin(line: Timeline, moments: int) -> Timeline:
    """Leave out all but so many moments; each that stays is the highest of those it stands for."""
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


def settings_of(plan: Plan, trace: Trace) -> AllocatorSettings:
    """The allocator's settings of a traced plan."""
    version = version_of(plan.torch or trace.versions.get("torch", "2.13"))
    return parse_alloc_conf(plan.alloc_conf, torch=version)


def predicted(traced: Traced, path: Path) -> None:
    """Write what ``torch.cuda.memory._dump_snapshot`` would have, for pytorch.org/memory_viz.

    Frames show the module and the operator, and under it the component and the phase.

    Raises:
        UsageError: a CPU run has no CUDA memory, or the file cannot be written.
    """
    plan, trace = traced.prediction.plan, traced.trace
    if plan.target == "cpu":
        raise UsageError("A CPU run has no CUDA memory snapshot: leave --target cpu out.")
    shown: dict[Storage, tuple[Frame, ...]] = {}

    def frames(key: Hashable) -> Sequence[Frame]:
        assert isinstance(key, int)
        storage = trace.storages[key % len(trace.storages)]
        if storage not in shown:
            made, dtype = f"made in {storage.phase.value} of step {storage.step}", storage.dtype
            shown[storage] = (
                (storage.module or f"({storage.phase.value})", 0, f"{storage.op} {dtype}".rstrip()),
                (storage.component.value, 0, made),
            )
        return shown[storage]

    snapshot = predicted_snapshot(
        _events(traced), settings_of(plan, trace), UNLIMITED, frames=frames
    )
    save_snapshot(snapshot, path)


def _events(traced: Traced) -> Iterator[tuple[Any, ...]]:
    """As replayed for the prediction, with the marks in words."""
    trace = traced.trace
    # As if dumped after the last step, with the model and the optimizer still there.
    for event in as_it_ran(replace(trace, events=trace.events[: program_end(trace)])):
        if event[0] is Op.MARK:
            step, phase = event[1]
            yield Op.MARK, f"step {step} {phase.value}"
        else:
            yield event
