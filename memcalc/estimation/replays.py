"""Levels that a run reached on its device, and would reach on others.

The run's own figures are PyTorch's counters. For a smaller card, or other settings of the
allocator, PyTorch's allocator replays the run's calls (``engine.replay``).
"""

from collections import deque
from collections.abc import Iterator, Sequence

import msgspec
from msgspec.structs import asdict, replace

from memcalc.engine.alloc_conf import without_fraction
from memcalc.engine.simulated_gpu import MEMORY
from memcalc.estimation.fits import Device, cards_to_try, device_of, judge
from memcalc.estimation.question import Asked, asked
from memcalc.records.levels import Levels
from memcalc.records.prediction import ALLOCATOR_RUNGS, Fit, PhasePeak, Prediction
from memcalc.records.replay import Call, Card, Play, Replay, Wanted
from memcalc.records.trace import Phase, Trace, components, counts
from memcalc.records.trace import highest as highest_events


def room_of(question: Asked) -> Device | None:
    """Return the GPU of the question as a device; ``None``: it names none."""
    return device_of(question.gpu, plan=question.plan) if question.gpu is not None else None


class Replays:
    """Replays of a run's calls; each card is asked about once."""

    def __init__(self, trace: Trace, play: Play) -> None:
        self.trace = trace
        self.play = play
        self._known: dict[Card, Replay] = {}

    def on(self, cards: Sequence[Card]) -> list[Replay]:
        """Replay the run on each of these cards.

        Raises:
            MemcalcError: it cannot be replayed.
        """
        new = [card for card in dict.fromkeys(cards) if card not in self._known]
        if new:
            found = self.play(list(calls_of(self.trace)), new, Wanted())
            self._known.update(zip(new, found, strict=True))
        return [self._known[card] for card in cards]


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The highest levels of a run, and those of each phase that counts."""

    peaks: Levels
    phases: tuple[PhasePeak, ...]


def outcome(trace: Trace) -> Outcome:
    """Return what a run on CUDA reached where nothing was in its way."""
    rungs = Levels.__struct_fields__
    peaks = {rung: max(getattr(one, rung) or 0 for one in trace.readings) for rung in rungs}
    return Outcome(peaks=Levels(**peaks), phases=_phases(trace))


def read_replay(replayed: Replay, trace: Trace) -> Trace:
    """Return the trace of a run with the peaks of its replay, as if it had run so.

    What tensors request is the run's: PyTorch's counter also has what waits for another stream.
    """
    readings = tuple(
        replace(own, **{**asdict(peaks), "requested": min(peaks.requested, own.requested or 0)})
        for own, peaks in zip(trace.readings, replayed.intervals, strict=False)
    )
    return replace(trace, readings=readings)


def requested_phases(trace: Trace) -> tuple[PhasePeak, ...]:
    """Return the peaks of the phases that count, of a run without a caching allocator."""
    events = highest_events(trace)
    return tuple(
        PhasePeak(phase=phase, requested=sum(components(trace, events[phase]).values()))
        for phase in Phase
        if phase in events
    )


def _phases(trace: Trace) -> tuple[PhasePeak, ...]:
    """Return the peaks of the phases that count, rung by rung, and the first step's."""
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


def roomy_card(question: Asked) -> Card:
    """Return the card of a run that tells what it needs: nothing on it is ever full."""
    memory = question.gpu.memory if question.gpu is not None else MEMORY
    return Card(conf=without_fraction(question.plan.alloc_conf), capacity=memory)


def when_crowded(question: Asked, run: Replays, unlimited: Levels) -> Outcome | None:
    """Replay the run on a GPU that would be full otherwise, and return what it reaches there.

    Returns:
        ``None``: all that the allocator would keep has room, or giving cached blocks back does not
        help.
    """
    device = room_of(question)
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


def on_device(prediction: Prediction, trace: Trace, device: Device, play: Play) -> Prediction:
    """Judge the same prediction by a device that need not be the plan's GPU."""
    (fit,) = judged(asked(prediction.plan), Replays(trace, play), [device])
    return replace(prediction, fit=fit)


def judged(
    question: Asked, run: Replays, devices: Sequence[Device], reached: Levels | None = None
) -> list[Fit]:
    """Judge whether a run fits each of some devices.

    ``reached``: its peaks without a limit; ``None``: those that it was read to have.
    """
    peaks = reached if reached is not None else outcome(run.trace).peaks
    settings = question.settings
    tried = [cards_to_try(settings, device, peaks) for device in devices]
    # The larger context first, for all devices at once: the smaller one is tried where that fails.
    run.on([cards[0] for cards in tried if cards])
    return [judge(run.on, settings, device, peaks) for device in devices]


def calls_of(trace: Trace) -> Iterator[Call]:
    """Yield every call of the allocator, in order, as ``records.replay`` has them."""
    marks: list[tuple[int, Call]] = [(mark.index, ("mark",)) for mark in trace.marks]
    told: list[tuple[int, Call]] = [
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
    between = deque(sorted([*marks, *told], key=lambda item: item[0]))
    for index, event in enumerate(trace.events):
        while between and between[0][0] <= index:
            yield between.popleft()[1]
        if event < 0:
            yield ~event, 0
            continue
        storage = trace.storages[event]
        yield (event, storage.bytes, storage.stream) if storage.stream else (event, storage.bytes)
    yield from (item for _, item in between)
