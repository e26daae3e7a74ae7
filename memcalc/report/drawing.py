"""A step's timeline, prepared once for all that draws it: pages, pictures and terminals."""

import operator
from collections.abc import Sequence

import msgspec

from memcalc.advice.explain.timeline import Stretch, Timeline, thin
from memcalc.records.prediction import Fit
from memcalc.report.rows import STYLES, Style
from memcalc.units import Unit, format_bytes, unit_for

WIDTH, HEIGHT = 1000, 400
"""The view box of a page's drawing."""
MOMENTS = 440
"""Moments of a page's drawing; more are finer than a screen shows."""
_AROUND = 60
"""Moments on either side of the peak that its close-up shows."""
_FAR = 1.6
"""A limit is drawn if it is at most this many times as high as the step."""


class Band(msgspec.Struct, frozen=True, kw_only=True):
    """A component: its style, its floor and its top in bytes at each moment."""

    style: Style
    floor: tuple[int, ...]
    top: tuple[int, ...]

    @property
    def most(self) -> str:
        """The largest bytes of the component over time, as text."""
        return format_bytes(max(map(operator.sub, self.top, self.floor)))


class Drawing(msgspec.Struct, frozen=True, kw_only=True):
    """A timeline to draw: bands, levels, phases and a limit, at moments of one width."""

    title: str
    line: Timeline
    """What is drawn."""
    unit: Unit
    bands: tuple[Band, ...]
    """The lowest first."""
    levels: dict[str, tuple[int, ...]]
    """Lines of the allocator: ``allocated`` and ``reserved``, where they are known."""
    limit: int | None
    """Bytes that the GPU offers; ``None``: no GPU is named, or it offers far more."""
    gpu: str
    moments: tuple[str, ...]
    """The event at each moment, and the bytes held after it."""

    @property
    def highest(self) -> int:
        """The highest level of all."""
        return max(self.levels.get("reserved", self.line.requested))

    def percent(self, size: float) -> float:
        """Return a size as a height in percent of the drawing."""
        return round(100 * size / (1.06 * max(self.highest, self.limit or 0, 1)), 2)

    def y(self, size: float) -> float:
        """Return the y coordinate of a size in the SVG view box."""
        return round(HEIGHT * (1 - self.percent(size) / 100), 1)

    def steps(self, sizes: Sequence[int]) -> str:
        """Return an SVG path that draws levels as steps."""
        wide = WIDTH / len(sizes)
        parts, last = [f"M0 {self.y(sizes[0]):g}"], sizes[0]
        for number, size in enumerate(sizes):
            if size != last:
                parts.append(f"H{round(number * wide, 1):g}V{self.y(size):g}")
                last = size
        return "".join([*parts, f"H{WIDTH}"])

    def wide_phases(self, share: int) -> list[Stretch]:
        """Return the phases longer than 1/``share`` of the drawing."""
        least = len(self.line.requested) / share
        return [one for one in self.line.phases if one.end - one.begin > least]

    @property
    def ticks(self) -> list[tuple[int, str]]:
        """Round sizes along the axis, and their texts in the unit that the title names."""
        found = round_ticks(self.highest, self.unit.bytes)
        return [(tick, f"{tick / self.unit.bytes:,g}") for tick in found]


def whole(line: Timeline, fit: Fit | None = None, moments: int = MOMENTS) -> Drawing:
    """Return the drawing of a whole step, thinned to at most this many events."""
    return _make_drawing(thin(line, moments), "one training step, event by event", fit)


def close_up(line: Timeline, fit: Fit | None = None) -> Drawing:
    """Return the drawing of the events around the peak."""
    begin, end = max(line.peak - _AROUND, 0), min(line.peak + _AROUND, len(line.requested))
    phases = (
        Stretch(phase=one.phase, begin=max(one.begin, begin) - begin, end=min(one.end, end) - begin)
        for one in line.phases
        if one.begin < end and one.end > begin
    )
    return _make_drawing(line.at(range(begin, end), phases), "around the peak", fit)


def _make_drawing(line: Timeline, title: str, fit: Fit | None) -> Drawing:
    highest = max(line.reserved or line.requested)
    levels = {"allocated": line.allocated, "reserved": line.reserved}
    phases = [one.phase.value for one in line.phases for _ in range(one.begin, one.end)]
    bands, floor = [], tuple([0] * len(line.requested))
    for component, style in STYLES.items():
        if component in line.components:
            top = tuple(map(operator.add, floor, line.components[component]))
            bands.append(Band(style=style, floor=floor, top=top))
            floor = top
    return Drawing(
        title=title,
        line=line,
        unit=unit_for(highest),
        bands=tuple(bands),
        levels={name: level for name, level in levels.items() if level is not None},
        limit=fit.limit if fit is not None and fit.limit <= highest * _FAR else None,
        gpu=fit.gpu if fit is not None else "",
        moments=tuple(
            f"{phase}: {made}; {format_bytes(size)} held"
            for phase, made, size in zip(phases, line.made, line.requested, strict=False)
        ),
    )


def round_ticks(highest: int, unit: float) -> list[int]:
    """Return four to eight round numbers of a unit, up to the highest."""
    step = 10.0 ** (len(str(int(highest // unit))) - 2)
    while highest / unit / step > 8:
        step *= 2.5 if f"{step:e}"[0] == "2" else 2
    return [int(unit * step * number) for number in range(int(highest / unit / step) + 1)]
