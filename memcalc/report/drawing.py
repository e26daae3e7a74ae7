"""A step's timeline as a drawing inside a page: it follows the page's width, colours and keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
from msgspec.structs import replace

from memcalc.advice.explain.timeline import Stretch, Timeline, thin
from memcalc.report.palette import STYLES
from memcalc.report.rows import component_word
from memcalc.units import format_bytes, unit_for

WIDTH, HEIGHT = 960, 340
LEFT, RIGHT, TOP, BOTTOM = 76, 8, 26, 26
_MOMENTS = 440
"""Each that is drawn is one that happened; more are finer than a screen shows."""
_AROUND = 60
"""Moments on either side of the peak that its close-up shows."""
_FAR = 1.6
"""A limit is drawn if the step comes near it: at most so many times as high."""


class Band(msgspec.Struct, frozen=True, kw_only=True):
    """One component, as an area from the axis up to its top; drawn before what lies under it."""

    name: str
    color: str
    path: str
    highest: str


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """A text at a place."""

    x: float
    y: float
    text: str


class PhaseMark(msgspec.Struct, frozen=True, kw_only=True):
    """Where a phase begins, and where its name stands."""

    begin: float
    middle: float
    text: str


class Drawing(msgspec.Struct, frozen=True, kw_only=True):
    """What the template draws; places are those of a view box of WIDTH by HEIGHT."""

    title: str
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    right: int = WIDTH - RIGHT
    floor: int = HEIGHT - BOTTOM
    bands: tuple[Band, ...]
    lines: tuple[tuple[str, str], ...]
    """A name and a path: the allocator's levels."""
    phases: tuple[PhaseMark, ...]
    ticks: tuple[Mark, ...]
    limit: Mark | None
    """What the GPU offers; ``None``: none is known, or it is far above."""
    moments: tuple[str, ...]
    """What happened at each moment, and how much was held after it."""
    tops: tuple[float, ...]
    """How high each moment is."""
    peak: int
    """Its number among the moments."""


def whole(line: Timeline, limit: int | None, gpu: str) -> Drawing:
    """All of a step."""
    return _drawn(thin(line, _MOMENTS), "one training step, event by event", limit, gpu)


def close_up(line: Timeline, limit: int | None, gpu: str) -> Drawing:
    """The moments around the peak."""
    begin, end = max(line.peak - _AROUND, 0), min(line.peak + _AROUND, len(line.requested))
    return _drawn(_cut(line, begin, end), "around the peak", limit, gpu)


def _cut(line: Timeline, begin: int, end: int) -> Timeline:
    return replace(
        line,
        components={name: band[begin:end] for name, band in line.components.items()},
        requested=line.requested[begin:end],
        allocated=line.allocated[begin:end] if line.allocated else None,
        reserved=line.reserved[begin:end] if line.reserved else None,
        made=line.made[begin:end],
        phases=tuple(
            Stretch(
                phase=one.phase,
                begin=max(one.begin, begin) - begin,
                end=min(one.end, end) - begin,
            )
            for one in line.phases
            if one.begin < end and one.end > begin
        ),
    )


def _drawn(line: Timeline, title: str, limit: int | None, gpu: str) -> Drawing:
    highest = max(line.reserved or line.requested)
    near = limit is not None and limit <= highest * _FAR
    top = max(highest, limit or 0) * 1.06 if near else highest * 1.06
    scale = _Scale(len(line.requested), top)
    levels = [
        (name, band)
        for name, band in (("allocated", line.allocated), ("reserved", line.reserved))
        if band is not None
    ]
    marked = None
    if near and limit is not None:
        marked = Mark(x=LEFT, y=scale.y(limit), text=f"{gpu}: {format_bytes(limit)}")
    # One unit, named once: what stands at the edge has no room on a phone.
    unit = unit_for(highest)
    return Drawing(
        title=f"{title}, {unit.name}",
        bands=tuple(reversed(list(_bands(line, scale)))),
        lines=tuple((name, scale.steps(band)) for name, band in levels),
        phases=tuple(
            PhaseMark(
                begin=scale.x(one.begin),
                middle=scale.x((one.begin + one.end) / 2),
                text=one.phase.value,
            )
            for one in line.phases
            if one.end - one.begin > len(line.requested) / 16
        ),
        ticks=tuple(
            Mark(x=LEFT - 6, y=scale.y(highest * part / 4), text=unit.number(highest * part // 4))
            for part in range(5)
        ),
        limit=marked,
        moments=tuple(_moments(line)),
        tops=tuple(scale.y(size) for size in line.requested),
        peak=line.peak,
    )


def _bands(line: Timeline, scale: _Scale) -> Iterator[Band]:
    """From the lowest to the highest, each with what lies under it."""
    floor = [0] * len(line.requested)
    for component, style in STYLES.items():
        sizes = line.components.get(component)
        if sizes is None:
            continue
        floor = [low + size for low, size in zip(floor, sizes, strict=True)]
        yield Band(
            name=component_word(component),
            color=style.color,
            path=f"{scale.steps(floor)}V{HEIGHT - BOTTOM}H{LEFT}Z",
            highest=format_bytes(max(sizes)),
        )


def _moments(line: Timeline) -> Iterator[str]:
    phases = [one for one in line.phases for _ in range(one.begin, one.end)]
    for number, size in enumerate(line.requested):
        phase = phases[number].phase.value if number < len(phases) else ""
        yield f"{phase}: {line.made[number]}; {format_bytes(size)} held"


class _Scale:
    """From moments and bytes to places."""

    def __init__(self, moments: int, top: float) -> None:
        self._wide = (WIDTH - LEFT - RIGHT) / max(moments, 1)
        self._high = (HEIGHT - TOP - BOTTOM) / max(top, 1)

    def x(self, moment: float) -> float:
        return round(LEFT + moment * self._wide, 1)

    def y(self, size: float) -> float:
        return round(HEIGHT - BOTTOM - size * self._high, 1)

    def steps(self, sizes: Sequence[int]) -> str:
        """A path that keeps each level for as long as its moment lasts."""
        parts, last = [f"M{LEFT} {self.y(sizes[0]):g}"], sizes[0]
        for number, size in enumerate(sizes):
            if size != last:
                parts.append(f"H{self.x(number):g}V{self.y(size):g}")
                last = size
        return "".join([*parts, f"H{self.x(len(sizes)):g}"])
