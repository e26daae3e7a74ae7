"""The records of an explanation. Sizes are unrounded bytes.

The peak's groups sum to the peak's requested bytes.
"""

import msgspec

from memcalc.advice.explain.layers import LayerKind
from memcalc.advice.remedies.records import Figures, Option, Search
from memcalc.records.display import Answer
from memcalc.records.prediction import Prediction
from memcalc.records.trace import Component, Phase


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Storages alive at one moment that are of one kind."""

    component: Component
    module: str
    """Its path, repeated layers as ``h.[0-11]``; empty where no module made them."""
    op: str
    dtype: str
    """Empty for scratch, which is plain bytes."""
    count: int
    bytes: int
    kept: str
    """What keeps them alive, and until when."""
    line: str = ""
    """Of the user's code that asked for them, as ``train.py:41``; empty: unknown."""


class PeakContents(msgspec.Struct, frozen=True, kw_only=True):
    """The highest moment of one phase of the steady step."""

    phase: Phase
    event: int
    """Index among the trace's events; all up to and with it have happened."""
    requested: int
    components: dict[Component, int]
    groups: tuple[Group, ...]
    """Everything alive, largest first; they sum to ``requested``."""


class Explanation(Answer, msgspec.Struct, frozen=True, kw_only=True):
    """Why a plan needs what it needs, and what would need less."""

    prediction: Prediction
    figures: Figures
    peak: PeakContents
    others: tuple[PeakContents, ...]
    """The highest moments of the other phases."""
    end: PeakContents | None = None
    """What a script that trains nothing still holds when it ends."""
    layers: tuple[LayerKind, ...] = ()
    """Of a quantized base: what each kind of layer holds."""
    options: tuple[Option, ...] = ()
    """The largest saving of reserved bytes first."""
    in_the_code: tuple[str, ...] = ()
    """What a user's own script could do without, in sentences."""
    search: Search | None = None
