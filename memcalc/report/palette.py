"""The words, color, hatch and letter of each component, also for readers without color vision.

Source: Okabe and Ito 2008, "Color Universal Design", https://jfly.uni-koeln.de/color/ (eight
colors); gray, and five of Tol's muted scheme (sronpersonalpages.nl/~pault), are added for the
others.
"""

from collections.abc import Iterator

import msgspec

from memcalc.advice.explain.timeline import Timeline
from memcalc.records.trace import Component


class Style(msgspec.Struct, frozen=True):
    """How one component is named and drawn."""

    color: str
    hatch: str
    """In matplotlib's words; empty: plain."""
    letter: str
    """What a terminal draws it with."""
    words: str
    note: str = ""
    """What it is, where its words do not say so."""


STYLES = {
    Component.WEIGHTS: Style("#0072B2", "", "W", "weights"),
    Component.QUANTISED_WEIGHTS: Style(
        "#117733", "++", "Q", "quantized weights", "linear layers in few bits"
    ),
    Component.QUANTISATION_CONSTANTS: Style("#88CCEE", "-", "q", "quantization scales"),
    Component.MASTER_WEIGHTS: Style("#56B4E9", "//", "M", "master weights"),
    Component.OPTIMIZER_STATE: Style("#CC79A7", "\\\\", "O", "optimizer state"),
    Component.GRADIENTS: Style("#D55E00", "xx", "G", "gradients"),
    Component.BUFFERS: Style("#999999", "--", "b", "buffers", "constants of the model"),
    Component.INPUTS: Style("#000000", "", "i", "inputs", "the batch"),
    Component.ACTIVATIONS: Style("#E69F00", "", "a", "activations", "saved for backward"),
    Component.HELD: Style(
        "#DDCC77", "\\\\\\", "h", "held by script", "lists and copies in variables"
    ),
    Component.TEMPORARIES: Style("#F0E442", "..", "t", "temporaries", "short-lived results"),
    Component.UNSHARDED: Style(
        "#332288", "oo", "U", "unsharded weights", "layers gathered while used"
    ),
    Component.COMMUNICATION: Style("#882255", "**", "c", "communication", "buffers of collectives"),
    Component.KV_CACHE: Style("#AA4499", "///", "K", "KV cache", "keys and values of past tokens"),
    Component.WORKSPACES: Style("#009E73", "||", "k", "workspaces", "kernel scratch space"),
}
"""In the order bands are stacked: what is always there lies at the bottom."""


def stacked(line: Timeline) -> Iterator[tuple[Style, list[int], list[int]]]:
    """Bands of a timeline, the lowest first: how each is drawn, its floor and its top in bytes."""
    floor = [0] * len(line.requested)
    for component, style in STYLES.items():
        if component in line.components:
            top = [low + size for low, size in zip(floor, line.components[component], strict=True)]
            yield style, floor, top
            floor = top
