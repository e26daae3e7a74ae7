"""What would need less of a user's own script: settings that can be tried without changing it."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from memcalc.advice.remedies.records import Option, Trial, figures
from memcalc.advice.remedies.rows import free
from memcalc.allocator.replay import replay
from memcalc.estimation.estimate import Traced
from memcalc.estimation.question import asked
from memcalc.estimation.replays import UNLIMITED, as_it_ran, judged, of_replay, room_of
from memcalc.workload.tasks import CALLABLE


def remedies(traced: Traced) -> Iterator[Option]:
    """The allocator's settings, by replaying what the script asked for."""
    before, trace = traced.prediction, traced.trace
    for remedy in free.expandable(before.plan, CALLABLE):
        question = asked(replace(before.plan, **dict(remedy.changes)))
        found = of_replay(replay(as_it_ran(trace), question.settings, UNLIMITED), trace)
        saved = (before.peak.reserved or 0) - found.peaks.reserved
        used = before.peak.process_used
        peak = replace(
            before.peak,
            reserved=found.peaks.reserved,
            process_used=used - saved if used is not None else None,
        )
        room = room_of(question)
        # The readings of the run are those of its own settings.
        fit = judged(question, replace(trace, readings=()), room) if room is not None else None
        told = replace(figures(before), plan=question.plan, peak=peak, fit=fit)
        yield Option(remedy=remedy, trial=Trial(remedies=(remedy.key,), figures=told))
