"""Reads the peaks of a run on its device, and replays it on other devices.

The run's own figures are PyTorch's counters. For a smaller card, or other settings of the
allocator, PyTorch's allocator replays the run's calls (``engine.replay``).
"""

from collections import deque
from collections.abc import Iterator, Sequence

import msgspec
from msgspec.structs import asdict, replace

from memcalc.engine.alloc_conf import without_fraction
from memcalc.engine.simulated_gpu import MEMORY
from memcalc.estimation.fits import Device, make_device
from memcalc.estimation.question import ResolvedPlan
from memcalc.records.levels import Levels
from memcalc.records.prediction import ALLOCATOR_RUNGS, PhasePeak
from memcalc.records.replay import Call, Card, Play, Replay, Wanted
from memcalc.records.trace import Phase, Trace, components, counts
from memcalc.records.trace import highest as highest_events


def find_device(question: ResolvedPlan) -> Device | None:
    """Return a plan's GPU as a device to fit, or None if it names no GPU and no size."""
    if question.gpu is None and question.memory is None:
        return None
    return make_device(question.gpu, question)


class Replays:
    """Replays of a run's calls on cards; each card is replayed once."""

    def __init__(self, trace: Trace, play: Play) -> None:
        self.trace = trace
        self.play = play
        self._known: dict[Card, Replay] = {}

    def on(self, cards: Sequence[Card]) -> list[Replay]:
        """Replay the run's allocations on each of these cards, each card once.

        Raises:
            MemcalcError: it cannot be replayed.
        """
        new = [card for card in dict.fromkeys(cards) if card not in self._known]
        if new:
            found = self.play(list(list_calls(self.trace)), new, Wanted())
            self._known.update(zip(new, found, strict=True))
        return [self._known[card] for card in cards]


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The peaks of a run, and of each phase that counts."""

    peaks: Levels
    phases: tuple[PhasePeak, ...]


def outcome(trace: Trace) -> Outcome:
    """Return the peaks of a traced CUDA run without memory limit, in all and by phase."""
    rungs = Levels.__struct_fields__
    peaks = {rung: max(getattr(one, rung) or 0 for one in trace.readings) for rung in rungs}
    return Outcome(peaks=Levels(**peaks), phases=_read_phases(trace))


def read_replay(replayed: Replay, trace: Trace) -> Trace:
    """Return a run's trace with its peaks replaced by those of a replay.

    Requested bytes are at most the run's own: PyTorch's counter includes freed blocks that wait for
    another stream.
    """
    readings = tuple(
        replace(own, **{**asdict(peaks), "requested": min(peaks.requested, own.requested or 0)})
        for own, peaks in zip(trace.readings, replayed.intervals, strict=False)
    )
    return replace(trace, readings=readings)


def requested_phases(trace: Trace) -> tuple[PhasePeak, ...]:
    """Return each phase's peak of requested bytes, for a run on the CPU."""
    events = highest_events(trace)
    return tuple(
        PhasePeak(phase=phase, requested=sum(components(trace, events[phase]).values()))
        for phase in Phase
        if phase in events
    )


def _read_phases(trace: Trace) -> tuple[PhasePeak, ...]:
    """Return each phase's peaks by memory level in the steady step, and in the first step."""
    found = []
    for phase in Phase:
        of_phase = [reading for reading in trace.readings if reading.phase is phase]
        steady = [one for one in of_phase if counts(trace, phase, one.step)]
        first = [one.allocated or 0 for one in of_phase if one.step == 0]
        if steady:
            peaks = {r: max(getattr(one, r) for one in steady) for r in ALLOCATOR_RUNGS}
            early = max(first, default=None)
            found.append(PhasePeak(phase=phase, first_step_allocated=early, **peaks))
    return tuple(found)


def roomy_card(question: ResolvedPlan) -> Card:
    """Return the card for a replay without memory limit, with the plan's allocator settings."""
    memory = question.gpu.memory if question.gpu is not None else MEMORY
    return Card(conf=without_fraction(question.plan.alloc_conf), capacity=memory)


def replay_full_gpu(question: ResolvedPlan, run: Replays, unlimited: Levels) -> Outcome | None:
    """Replay the run at its GPU's size if it reserves more than the GPU has, else None.

    Returns:
        The peaks of the replay. None if everything has room, or freeing cached blocks does not
        help.
    """
    device = find_device(question)
    if device is None:
        return None
    if unlimited.reserved <= device.room(device.context.high):
        return None
    for card in device.cards(question.plan.alloc_conf):
        if unlimited.allocated <= card.room:
            (found,) = run.on([card])
            if found.refused is None:
                return outcome(read_replay(found, run.trace))
    return None


def list_calls(trace: Trace) -> Iterator[Call]:
    """Yield a trace's allocator calls in order, in the form of ``records.replay``."""
    marks: list[tuple[int, Call]] = [(mark.index, ("mark",)) for mark in trace.marks]
    calls: list[tuple[int, Call]] = [
        (
            aside.index,
            ("used_by", aside.storage, aside.stream)
            if aside.what == "used_by"
            else ("passed", aside.storage)
            if aside.what == "passed"
            else (aside.what, aside.stream)
            if aside.what == "keep_pool"
            else (aside.what,),
        )
        for aside in trace.asides
    ]
    # Of those before the same event, in the order they are listed.
    between = deque(sorted([*marks, *calls], key=lambda item: item[0]))
    for index, event in enumerate(trace.events):
        while between and between[0][0] <= index:
            yield between.popleft()[1]
        if event < 0:
            yield ~event, 0
            continue
        storage = trace.storages[event]
        yield (event, storage.bytes, storage.stream) if storage.stream else (event, storage.bytes)
    yield from (item for _, item in between)
