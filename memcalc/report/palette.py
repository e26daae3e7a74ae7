"""A color and a hatch for each component, also for readers without color vision.

Source: Okabe and Ito 2008, "Color Universal Design", https://jfly.uni-koeln.de/color/ (eight
colors); gray, and five of Tol's muted scheme (sronpersonalpages.nl/~pault), are added for the
others.
"""

from __future__ import annotations

import msgspec

from memcalc.records.trace import Component


class Style(msgspec.Struct, frozen=True, kw_only=True):
    """How one component is drawn."""

    color: str
    hatch: str
    """In matplotlib's words; empty: plain."""


STYLES = {
    Component.WEIGHTS: Style(color="#0072B2", hatch=""),
    Component.QUANTISED_WEIGHTS: Style(color="#117733", hatch="++"),
    Component.QUANTISATION_CONSTANTS: Style(color="#88CCEE", hatch="-"),
    Component.MASTER_WEIGHTS: Style(color="#56B4E9", hatch="//"),
    Component.OPTIMIZER_STATE: Style(color="#CC79A7", hatch="\\\\"),
    Component.GRADIENTS: Style(color="#D55E00", hatch="xx"),
    Component.BUFFERS: Style(color="#999999", hatch="--"),
    Component.INPUTS: Style(color="#000000", hatch=""),
    Component.ACTIVATIONS: Style(color="#E69F00", hatch=""),
    Component.HELD: Style(color="#DDCC77", hatch="\\\\\\"),
    Component.TEMPORARIES: Style(color="#F0E442", hatch=".."),
    Component.UNSHARDED: Style(color="#332288", hatch="oo"),
    Component.COMMUNICATION: Style(color="#882255", hatch="**"),
    Component.KV_CACHE: Style(color="#AA4499", hatch="///"),
    Component.WORKSPACES: Style(color="#009E73", hatch="||"),
}
"""In the order bands are stacked: what is always there lies at the bottom."""
