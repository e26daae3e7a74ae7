"""The records of ``memcalc fit``."""

import msgspec

from memcalc.advice.remedies.records import Figures, Search, Trial
from memcalc.records.display import Answer
from memcalc.records.plan import Plan
from memcalc.records.prediction import Fit, Span
from memcalc.records.trace import Sent


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """A batch and sequence, and whether it fits."""

    batch: int
    seq: int | None
    fit: Fit


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """The largest batch (or sequence) that fits."""

    axis: str
    """``batch`` or ``seq``."""
    step: int
    """Sizes tried are multiples of this."""
    best: Probe | None
    """The largest that fits; ``None``: not even the smallest does."""
    above: Probe | None
    """The next size that was tried, which does not fit for sure; ``None``: it cannot be run."""
    perhaps: Probe | None
    """A larger one that is tight; ``None``: none was seen."""
    exact: bool = True
    """Nothing between ``best`` and ``above`` is left to try."""
    reason: str = ""
    """Why a larger one cannot be run, which has no figures; empty: the model takes no more."""
    suggested: int | None = None
    advice: str = ""
    """Why the suggestion, and its source."""

    def value(self, probe: Probe | None) -> int | None:
        """A probe's size along the axis."""
        if probe is None:
            return None
        return probe.batch if self.axis == "batch" else probe.seq


class Grid(msgspec.Struct, frozen=True, kw_only=True):
    """Batches by sequences; ``cells[i][j]`` is sequence ``i`` with batch ``j``."""

    batches: tuple[int, ...]
    seqs: tuple[int | None, ...]
    cells: tuple[tuple[Probe, ...], ...]


class GpuFit(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU of the catalog; ``fit`` is ``None`` where it could not be estimated."""

    name: str
    capacity: int
    price: float | None = None
    """US dollars an hour, to the order of magnitude; ``None``: none is on record."""
    fit: Fit | None
    reason: str = ""


class DevicesFit(msgspec.Struct, frozen=True, kw_only=True):
    """A number of GPUs and a layout over them; ``fit`` is ``None`` if it could not be estimated."""

    devices: int
    parallel: str | None
    """``None``: one GPU."""
    fit: Fit | None = None
    sent: int = 0
    """Bytes that each GPU sends in an optimizer step."""
    messages: tuple[Sent, ...] = ()
    """The same bytes by collective."""
    reason: str = ""


class FitAnswer(Answer, msgspec.Struct, frozen=True, kw_only=True):
    """The answer of ``memcalc fit`` for one plan and one device."""

    plan: Plan
    device: str | None = None
    """Name of the GPU; ``None``: only ``gpus`` was asked."""
    capacity: int | None = None
    context: Span | None = None
    here: Probe | None = None
    """The plan itself."""
    limits: tuple[Limit, ...] = ()
    grid: Grid | None = None
    gpus: tuple[GpuFit, ...] = ()
    devices: tuple[DevicesFit, ...] = ()
    """Layouts over more and more GPUs; the last rows have the fewest that fit."""
    before: Figures | None = None
    """Figures of the plan itself, traced; ``None``: ``settings`` was not asked."""
    settings: tuple[Trial, ...] = ()
    """The plan with one change each; those that fit and cost least first."""
    search: Search | None = None
    """The cheapest changes together that fit; ``None``: the plan does, or it was not asked."""
    traces: int = 0
    """Plain traces that were made for this answer."""
    assumptions: tuple[str, ...] = ()
    uncounted: tuple[str, ...] = ()
    unknown: dict[str, str] = msgspec.field(default_factory=dict)
    """Why something asked for is missing, by its name."""
