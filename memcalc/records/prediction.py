"""The answer: memory by phase, and whether it fits a GPU."""

from enum import StrEnum
from typing import Any

import msgspec

from memcalc.records.display import Answer, figure
from memcalc.records.model import OptimizerState
from memcalc.records.plan import Plan
from memcalc.records.serving import Serving
from memcalc.records.trace import Component, Phase, Sent

LONGER = "what a longer run reserves"
"""Begins what is not counted of a run whose steps differ."""
_LONG = 100_000
"""Steps that few trainings make: a loss that is kept in a list fills no GPU by then."""
_ROUNDED_BY = 32 << 20
"""More than the allocator rounds a request up by, in bytes."""
_MUCH = 1 << 30
"""Bytes that growth gathers in so many steps before it is worth a line."""


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """The request that failed for lack of GPU memory and ended the run."""

    device: int
    phase: Phase
    step: int
    line: str
    """In the user's code; empty: unknown."""
    asked: int
    """Requested bytes."""
    free: int
    """Free bytes of the GPU."""
    last: bool = False
    """The figures end here: without a limit the script failed as well."""

    @property
    def by_own_limit(self) -> bool:
        """True if the GPU had room, but the script allows PyTorch only a part of it."""
        return self.free >= self.asked + _ROUNDED_BY


class Growth(msgspec.Struct, frozen=True, kw_only=True):
    """A script keeps more memory with every step."""

    bytes: int
    """In a step, on average."""
    line: str
    """The line in the user's code that allocates most of it; empty: unknown."""
    holder: str = ""
    """The variable that holds most of it; empty: unknown."""
    filled: str = ""
    """The line in the user's code that puts it into this variable; empty: unknown."""
    component: Component = Component.HELD
    """What most of it is."""
    varies: bool = False
    """Steps keep different amounts, or some keep nothing."""
    steps: int | None = None
    """More steps until the GPU is full, about; ``None``: no GPU is named."""

    @property
    def runs_full(self) -> bool:
        """True if the GPU is full before a training of usual length has ended."""
        return self.steps is not None and self.steps < _LONG

    @property
    def matters(self) -> bool:
        """True if a training of usual length gathers much, or fills the GPU."""
        return self.runs_full or self.bytes * _LONG >= _MUCH


RUNGS = ("requested", "allocated", "reserved", "process_used")
"""The ladder of memory, lowest first: what tensors ask for, the blocks that hold it, what PyTorch's
allocator holds of the device, and what the process holds of it. Fields of ``Peak``."""
ALLOCATOR_RUNGS = RUNGS[:-1]
"""Those that PyTorch's allocator counts, phase by phase."""


class PhaseLevels(msgspec.Struct, frozen=True, kw_only=True):
    """The highest level inside one phase, on each rung that PyTorch's allocator counts."""

    phase: Phase
    requested: int
    allocated: int | None = None
    reserved: int | None = None


class PhasePeak(PhaseLevels, frozen=True, kw_only=True):
    """The levels of one phase of the steady step."""

    first_step_allocated: int | None = None
    """The same phase in the first step, where optimizer state may not exist yet."""


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """A figure known only within limits."""

    name: str = ""
    """The name of a part; empty: it is a whole."""
    low: int
    likely: int | None = None
    high: int
    source: str
    parts: tuple["Span", ...] = ()
    """Its parts; the ends of parts that were read together do not add up."""


class Peak(PhaseLevels, frozen=True, kw_only=True):
    """The ladder at the peak: each rung at least the one before.

    Raises:
        ValueError: the rungs are out of order.
    """

    process_used: int | None = None

    def __post_init__(self) -> None:
        known = [r for r in (self.requested, self.allocated, self.reserved, self.process_used) if r]
        if known != sorted(known):
            raise ValueError(f"ladder out of order: {self}")


class RuleOfThumb(msgspec.Struct, frozen=True, kw_only=True):
    """A well-known rule of thumb, shown beside the exact figure and never instead of it."""

    name: str
    bytes_per_parameter: float
    bytes: int


class FitVerdict(StrEnum):
    """Does a run fit a GPU? ``estimation/fits.py`` decides it, for every command."""

    FITS = "fits"
    TIGHT = "tight"
    """It may fit: the range reaches the card's size, or leaves less than a margin of 3 %."""
    LEAKS = "leaks"
    """A script fits at first, and keeps more memory every step until the GPU is full."""
    DOES_NOT_FIT = "does not fit"


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """Does the peak fit a GPU, and by how much."""

    gpu: str
    capacity: int
    needed: int
    metric: str
    """The rung that was compared: ``process_used``, or ``allocated`` where no more is known."""
    verdict: FitVerdict
    needed_high: int | None = None
    """``needed`` with the largest context."""
    retries: int = 0
    """How often the allocator gives its cache back to go on (``num_alloc_retries``)."""
    allowed: int | None = None
    """What the process may use where ``per_process_memory_fraction`` allows its allocator less
    than the GPU has; ``None``: all of it."""

    @property
    def fits(self) -> bool:
        """True if it fits for sure, with a margin to spare."""
        return self.verdict is FitVerdict.FITS

    @property
    def most(self) -> int:
        """The bytes needed with the largest context."""
        return self.needed if self.needed_high is None else self.needed_high

    @property
    def limit(self) -> int:
        """The most that the process may use."""
        return self.capacity if self.allowed is None else min(self.allowed, self.capacity)

    @property
    def margin(self) -> int:
        """Bytes left over; negative when it does not fit."""
        return self.limit - self.needed

    @property
    def least_margin(self) -> int:
        """Bytes left over with the largest context; negative when it does not fit."""
        left = self.capacity - self.most
        return left if self.allowed is None else min(left, self.allowed - self.needed)


class OnGpu(msgspec.Struct, frozen=True, kw_only=True):
    """The memory of one of several GPUs that a program uses."""

    index: int
    """As in ``cuda:1``."""
    peak: Peak
    fit: Fit | None = None


class OnRank(msgspec.Struct, frozen=True, kw_only=True):
    """The memory of one of the processes that train together."""

    rank: int
    alike: tuple[int, ...] = ()
    """Other ranks, which do the same and were not run."""
    stage: int | None = None
    """Its place among ranks that pass messages on, from 0; ``None``: they pass none on."""
    peak: Peak
    dominant: Component
    """What takes most at the peak, and its bytes."""
    bytes: int
    fit: Fit | None = None
    code: int = 0
    """Exit code of its process; not 0: the figures are those until then."""


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """A way to train on the same samples."""

    name: str
    requested: int
    allocated: int
    """The peaks over all batches."""
    reserved: int
    """After the last batch; the allocator gives nothing back by itself."""
    shortest: int
    """Tokens of the shortest and the longest batch."""
    longest: int


class Varied(msgspec.Struct, frozen=True, kw_only=True):
    """The memory of a hundred batches of varying length."""

    lengths: str
    batches: int
    longest: int
    """Tokens at which samples are cut."""
    least: int
    """Peak allocated of the batch that takes least, and of the one that takes most."""
    most: int
    ways: tuple[Way, ...]
    """The first is the order drawn."""
    fit: Fit | None = None
    """Whether that one fits the plan's GPU; ``None``: none was named."""


class Prediction(Answer, msgspec.Struct, frozen=True, kw_only=True):
    """The answer to one plan."""

    plan: Plan
    head: str
    task: str
    seq: int | None
    """Tokens per sample that were settled on; ``None`` where inputs have none."""
    parameters: int
    parameter_tensors: int
    trainable: int
    components: dict[Component, int]
    """Bytes at the peak, by component; they sum to the peak's requested bytes."""
    phases: tuple[PhasePeak, ...]
    peak: Peak
    optimizer_state: OptimizerState
    rules_of_thumb: tuple[RuleOfThumb, ...]
    method: str
    """``trace`` (the real code ran on a simulated GPU), ``engine`` (a serving engine started there)
    or ``analytic`` (closed form)."""
    gradients: int | None = None
    """Bytes of all gradients together, as the optimizer finds them."""
    flops: int | None = None
    """Floating-point operations of a step's products, convolutions and attention; ``None``: not
    counted."""
    sent: tuple[Sent, ...] = ()
    """Over several GPUs: what this one sends in an optimizer step, by collective."""
    context: Span | None = None
    allocated: Span | None = None
    """What is allocated at the peak, where that is known only within limits; ``None``: it is
    known."""
    allocator: Span | None = None
    """What is reserved, where workspaces are known only within limits; ``None``: it is known."""
    fit: Fit | None = None
    device: int = 0
    """The number of the GPU that this is the answer of: of several the fullest."""
    gpus: tuple[OnGpu, ...] = ()
    """All of them, where one process uses several."""
    rank: int | None = None
    """The process that this is the answer of, of a script that several train with; of those that
    were run the one that needs most. ``None``: it trains alone."""
    ranks: tuple[OnRank, ...] = ()
    """Those that were run, where all were asked for."""
    refusal: Refusal | None = None
    """Of a script: the request that ended it for want of memory; the figures are those of a run
    without a limit."""
    growth: Growth | None = None
    """Of a script: what it holds grows with every step."""
    varied: Varied | None = None
    """Batches of varying length that were replayed beside, where they were asked for."""
    assumptions: tuple[str, ...] = ()
    uncounted: tuple[str, ...] = ()
    unknown: dict[str, str] = msgspec.field(default_factory=dict)
    """Why a figure is ``None``, by its name."""
    versions: dict[str, str] = msgspec.field(default_factory=dict)
    serving: Serving | None = None
    """What a serving engine would reserve, where the plan names one; the peak is that of its rules,
    not of a run."""
    config: str | None = None
    """Digest of the model's config.json; ``None``: it has none, or an older memcalc wrote this."""

    @property
    def fits(self) -> bool:
        """True if it fits the named GPU for sure."""
        return self.fit is not None and self.fit.fits

    @property
    def traffic(self) -> int:
        """Bytes that this GPU sends in an optimizer step."""
        return sum(one.bytes for one in self.sent)

    def plot(self) -> Any:
        """Draw the components at the peak as a matplotlib figure."""
        return figure(self)
