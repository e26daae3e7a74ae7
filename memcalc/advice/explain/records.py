"""The records of an explanation. Sizes are unrounded bytes.

The peak's groups sum to the peak's requested bytes.
"""

import msgspec

from memcalc.advice.explain.layers import LayerKind
from memcalc.advice.remedies.records import Figures, Search, Trial, figures
from memcalc.records.display import Answer
from memcalc.records.prediction import Prediction
from memcalc.records.trace import Component, Phase


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Storages of one kind, alive at one moment."""

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
    peak: PeakContents
    others: tuple[PeakContents, ...]
    """The highest moments of the other phases."""
    end: PeakContents | None = None
    """Storages that a script which trains nothing still holds at its end."""
    layers: tuple[LayerKind, ...] = ()
    """The kinds of layers of a quantized base."""
    trials: tuple[Trial, ...] = ()
    """Each remedy alone, the largest saving of reserved bytes first."""
    in_the_code: tuple[str, ...] = ()
    """Changes of a user's own script that would save memory, in sentences."""
    search: Search | None = None

    @property
    def figures(self) -> Figures:
        """The figures of the unchanged plan."""
        return figures(self.prediction)
