"""A step's timeline as a drawing inside a page.

The drawing is stretched to the page's width; texts lie over it, so that they keep their size.
"""

import operator
from collections.abc import Iterator, Sequence

import msgspec

from memcalc.advice.explain.timeline import Stretch, Timeline, thin
from memcalc.report.rows import stacked
from memcalc.units import format_bytes, unit_for

WIDTH, HEIGHT = 1000, 400
"""Of the view box."""
_MOMENTS = 440
"""Each that is drawn is one that happened; more are finer than a screen shows."""
_AROUND = 60
"""Moments on either side of the peak that its close-up shows."""
_FAR = 1.6
"""A limit is drawn if the step comes near it: at most so many times as high."""


Mark = tuple[float, str]
"""A text at a height, in percent of the drawing."""


class _Scale:
    """From moments and bytes to places."""

    def __init__(self, moments: int, top: float) -> None:
        self._wide = WIDTH / max(moments, 1)
        self._high = 1 / max(top, 1)

    def x(self, moment: float) -> float:
        return round(moment * self._wide, 1)

    def y(self, size: float) -> float:
        return round(HEIGHT * (1 - size * self._high), 1)

    def percent(self, size: float) -> float:
        """A height over the floor."""
        return round(100 * size * self._high, 2)

    def steps(self, sizes: Sequence[int]) -> str:
        """A path that keeps each level for as long as its moment lasts."""
        parts, last = [f"M0 {self.y(sizes[0]):g}"], sizes[0]
        for number, size in enumerate(sizes):
            if size != last:
                parts.append(f"H{self.x(number):g}V{self.y(size):g}")
                last = size
        return "".join([*parts, f"H{self.x(len(sizes)):g}"])


class Drawing(msgspec.Struct, frozen=True, kw_only=True):
    """What the template draws; places are those of a view box of WIDTH by HEIGHT."""

    title: str
    width: int = WIDTH
    height: int = HEIGHT
    bands: tuple[tuple[str, str, str, str], ...]
    """Of each component its name, color, area from the axis up to its top, and most bytes; drawn
    before what lies under it."""
    levels: tuple[tuple[str, str, Mark | None], ...]
    """Lines of the allocator's: name, path, and the text at its end."""
    phases: tuple[tuple[float, float, str], ...]
    """Where each begins, and how wide it is, in percent, and its name."""
    ticks: tuple[Mark, ...]
    limit: Mark | None
    """What the GPU offers; ``None``: none is known, or it is far above."""
    moments: tuple[str, ...]
    """What happened at each moment, and how much was held after it."""
    tops: tuple[float, ...]
    """Where the top of each moment is in the view box."""
    peak: int
    """Its number among the moments."""


def whole(line: Timeline, limit: int | None, gpu: str) -> Drawing:
    """All of a step."""
    return _drawn(thin(line, _MOMENTS), "one training step, event by event", limit, gpu)


def close_up(line: Timeline, limit: int | None, gpu: str) -> Drawing:
    """The moments around the peak."""
    begin, end = max(line.peak - _AROUND, 0), min(line.peak + _AROUND, len(line.requested))
    phases = (
        Stretch(phase=one.phase, begin=max(one.begin, begin) - begin, end=min(one.end, end) - begin)
        for one in line.phases
        if one.begin < end and one.end > begin
    )
    return _drawn(line.at(range(begin, end), phases), "around the peak", limit, gpu)


def _drawn(line: Timeline, title: str, limit: int | None, gpu: str) -> Drawing:
    highest = max(line.reserved or line.requested)
    near = limit is not None and limit <= highest * _FAR
    top = max(highest, limit or 0) * 1.06 if near else highest * 1.06
    scale = _Scale(len(line.requested), top)
    marked = None
    if near and limit is not None:
        marked = scale.percent(limit), f"{gpu}: {format_bytes(limit)}"
    phases = [one.phase.value for one in line.phases for _ in range(one.begin, one.end)]
    # One unit, named once: what stands at the edge has no room on a phone.
    unit = unit_for(highest)
    return Drawing(
        title=f"{title}, {unit.name}",
        bands=tuple(
            (
                style.words,
                style.color,
                f"{scale.steps(top)}V{HEIGHT}H0Z",
                format_bytes(max(map(operator.sub, top, floor))),
            )
            for style, floor, top in reversed(list(stacked(line)))
        ),
        levels=tuple(_levels(line, scale)),
        phases=tuple(
            (
                100 * one.begin / len(line.requested),
                100 * (one.end - one.begin) / len(line.requested),
                one.phase.value,
            )
            for one in line.phases
            if one.end - one.begin > len(line.requested) / 16
        ),
        ticks=tuple(
            (scale.percent(tick), f"{tick / unit.bytes:,g}")
            for tick in round_ticks(highest, unit.bytes)
        ),
        limit=marked,
        moments=tuple(
            f"{phase}: {made}; {format_bytes(size)} held"
            for phase, made, size in zip(phases, line.made, line.requested, strict=False)
        ),
        tops=tuple(scale.y(size) for size in line.requested),
        peak=line.peak,
    )


def round_ticks(highest: int, unit: float) -> list[int]:
    """Four to eight round numbers of a unit, up to the highest."""
    step = 10.0 ** (len(str(int(highest // unit))) - 2)
    while highest / unit / step > 8:
        step *= 2.5 if f"{step:e}"[0] == "2" else 2
    return [int(unit * step * number) for number in range(int(highest / unit / step) + 1)]


def _levels(line: Timeline, scale: _Scale) -> Iterator[tuple[str, str, Mark | None]]:
    if line.allocated is not None:
        yield "allocated", scale.steps(line.allocated), None
    if line.reserved is not None:
        text = f"reserved {format_bytes(line.reserved[-1])}"
        yield "reserved", scale.steps(line.reserved), (scale.percent(line.reserved[-1]), text)
