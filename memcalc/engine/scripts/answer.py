"""Makes a trace for each GPU from the notes of a program."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from memcalc.engine import source_lines
from memcalc.engine import torch_internals as internals
from memcalc.engine.history import Refused, Timeline
from memcalc.engine.notes import Interval, Notes
from memcalc.engine.scripts import held
from memcalc.engine.scripts.counters import Counters
from memcalc.engine.scripts.models import Models
from memcalc.records.prediction import LONGER, Refusal
from memcalc.records.trace import Phase, Trace
from memcalc.units import format_bytes


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """What a program took of each GPU that it used."""

    traces: dict[int, Trace]
    refusal: Refusal | None = None


def recorded(
    counters: Counters,
    models: Models,
    name: str,
    *,
    steps: int,
    alike: range = range(0),
    said: Iterable[str] = (),
    groups: tuple[int, ...] = (),
) -> Recorded:
    """Read the allocators' history; the program has ended.

    Args:
        counters: of the allocators.
        models: of the program.
        name: of the program.
        steps: in which it was.
        alike: steps that do the same, if batches are alike.
        said: what is assumed.
        groups: processes in each group that sends something.
    """
    if not counters.notes:
        return Recorded(traces={})
    snapshot = internals.stop_history()
    arrived = internals.arrivals()
    traces, refusal = {}, None
    for notes in counters.notes:
        entries = snapshot["device_traces"][notes.device]
        if not entries:
            continue
        notes.private = internals.private_pools(snapshot, notes.device)
        notes.arrived += [(moment - notes.zero, address) for moment, address in arrived]
        timeline = Timeline(notes, entries, _cached_lines())
        if not notes.wrapped:
            held.name(timeline, notes.intervals)
        traces[notes.device] = timeline.trace(
            inventory=models.inventory(name),
            steps=steps,
            uncounted=(*_longer(notes.intervals, alike), *_others()),
            sent=timeline.sent(max(0, steps - 2)),
            whole=True,
            assumptions=tuple(dict.fromkeys(said)),
            groups=groups,
        )
        if timeline.refused:
            refusal = _refusal(notes, timeline.refused[-1])
    return Recorded(traces=traces, refusal=refusal)


_ALIKE = 0.01
"""Steps whose peaks differ by less are alike: a loss that is kept, a counter that grows."""
_OTHERS = "processes that the script started: one had up to {} of GPU memory, context included"
_LONGER = (
    f"{LONGER}: peaks of these {{}} steps differ, so batches may differ in size, "
    "and each new size can fragment the cache (--steps {} runs more of them)"
)


def _longer(intervals: Sequence[Interval], alike: range) -> tuple[str, ...]:
    """What few steps do not show, where those with all optimizer state took different peaks."""
    peaks: dict[int, int] = {}
    whole = {one.step for one in intervals if one.phase is Phase.BACKWARD}
    for one in intervals:
        if one.step in alike and one.step in whole and one.phase in (Phase.FORWARD, Phase.BACKWARD):
            peaks[one.step] = max(peaks.get(one.step, 0), one.requested)
    found = [*peaks.values()]
    # What the first leaves behind is alive in all others.
    found = found[1:] if len(found) > 2 else found
    if len(found) < 2 or min(found) >= (1 - _ALIKE) * max(found):
        return ()
    return (_LONGER.format(len(whole), 10 * len(whole)),)


def _others() -> tuple[str, ...]:
    most = internals.most_of_others()
    return (_OTHERS.format(format_bytes(most)),) if most else ()


def _cached_lines() -> Any:
    known: dict[int, str] = {}
    kept: list[Any] = []

    def line_of(frames: Any) -> str:
        found = known.get(id(frames))
        if found is None:
            kept.append(frames)
            found = known[id(frames)] = source_lines.of_frames(frames)
        return found

    return line_of


def _refusal(notes: Notes, refused: Refused) -> Refusal:
    interval = next(one for one in reversed(notes.intervals) if one.begin <= refused.moment)
    return Refusal(
        device=notes.device,
        phase=interval.phase,
        step=interval.step,
        line=refused.line or interval.line,
        asked=refused.bytes,
        free=refused.free,
    )
