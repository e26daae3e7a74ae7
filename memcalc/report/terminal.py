"""A step's timeline for a terminal, drawn by plotext."""

from __future__ import annotations

from memcalc.advice.explain.timeline import Timeline, thin
from memcalc.records.trace import Component
from memcalc.report.palette import STYLES
from memcalc.report.rows import COMPONENT_WORDS
from memcalc.units import format_bytes

LETTERS = {
    Component.WEIGHTS: "W",
    Component.QUANTISED_WEIGHTS: "Q",
    Component.QUANTISATION_CONSTANTS: "q",
    Component.MASTER_WEIGHTS: "M",
    Component.OPTIMIZER_STATE: "O",
    Component.GRADIENTS: "G",
    Component.BUFFERS: "b",
    Component.INPUTS: "i",
    Component.ACTIVATIONS: "a",
    Component.TEMPORARIES: "t",
    Component.UNSHARDED: "U",
    Component.COMMUNICATION: "c",
    Component.WORKSPACES: "k",
}
_HEIGHT = 20
_SIDES = 12
"""Columns beside the canvas: the axis and its labels."""


def timeline(line: Timeline, *, width: int = 100) -> str:
    """Requested bytes of one step by component."""
    import plotext

    shown = thin(line, width - _SIDES)
    bands = {name: shown.components[name] for name in STYLES if name in shown.components}
    figure = plotext.figure
    figure.clear()
    figure.theme("clear")
    moments = list(range(len(shown.requested)))
    tops: list[list[int]] = []
    for band in bands.values():
        tops.append([sum(pair) for pair in zip(tops[-1], band, strict=True)] if tops else [*band])
    # The whole stack first, then ever less of it over it: a cell shows the lowest band it touches.
    for name, top in reversed(list(zip(bands, tops, strict=True))):
        bars = figure.bar(moments, top, width=1.0, lines=False, marker=LETTERS[name])
        figure.draw(bars)
    highest = max(shown.requested)
    ticks = [highest * quarter // 4 for quarter in range(5)]
    figure.ruler("y").ticks(ticks, [format_bytes(tick) for tick in ticks])
    wide = [s for s in shown.phases if s.end - s.begin > len(s.phase.value) + 2]
    figure.ruler("x").ticks([s.begin for s in wide], [s.phase.value for s in wide])
    figure.plot_size(width, _HEIGHT)
    drawn = plotext.uncolorize(str(figure.build()))
    legend = "  ".join(f"{LETTERS[name]} {COMPONENT_WORDS[name]}" for name in bands)
    lines = [text.rstrip() for text in drawn.splitlines()]
    return "\n".join([*filter(None, lines), f"requested bytes: {legend}"]) + "\n"
