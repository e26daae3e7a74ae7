"""The timeline of a step as text, drawn by plotext, and the facts of doctor."""

from collections.abc import Sequence

from memcalc import untrusted_text
from memcalc.advice.explain.timeline import Timeline
from memcalc.records.measurement import Fact
from memcalc.report import drawing
from memcalc.units import format_bytes
from memcalc.wrap import fold

_HEIGHT = 20
_SIDES = 12
"""Columns beside the canvas: the axis and its labels."""


def timeline(line: Timeline, *, width: int = 100) -> str:
    """Return a text chart of a step's requested bytes by component."""
    import plotext

    shown = drawing.whole(line, moments=width - _SIDES)
    figure = plotext.figure
    figure.clear()
    figure.theme("clear")
    moments = list(range(len(shown.line.requested)))
    # The whole stack first, then ever less of it over it: a cell shows the lowest band it touches.
    for band in reversed(shown.bands):
        figure.draw(
            figure.bar(moments, list(band.top), width=1.0, lines=False, marker=band.style.letter)
        )
    ticks = [max(shown.line.requested) * quarter // 4 for quarter in range(5)]
    figure.ruler("y").ticks(ticks, [format_bytes(tick) for tick in ticks])
    wide = [s for s in shown.line.phases if s.end - s.begin > len(s.phase.value) + 2]
    figure.ruler("x").ticks([s.begin for s in wide], [s.phase.value for s in wide])
    figure.plot_size(width, _HEIGHT)
    drawn = plotext.uncolorize(str(figure.build()))
    legend = "  ".join(f"{band.style.letter} {band.style.words}" for band in shown.bands)
    lines = [text.rstrip() for text in drawn.splitlines()]
    return "\n".join([*filter(None, lines), f"requested bytes: {legend}"]) + "\n"


def facts_text(facts: Sequence[Fact], width: int) -> str:
    """Return doctor's facts as text, marked where amiss, with advice under each."""
    lines: list[str] = []
    for fact in facts:
        mark = " " if fact.well else "!"
        lines += fold(untrusted_text.line(f"{mark} {fact.name:13} {fact.value}"), width, 16)
        if fact.advice:
            lines += fold(untrusted_text.line(f"{'':16}-> {fact.advice}"), width, 19)
    return untrusted_text.lines("\n".join(lines) + "\n")
