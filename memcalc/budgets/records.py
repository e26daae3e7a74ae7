"""The records of a budget check.

BudgetFile (the limits of a repository) -> Evidence (the cost of its runs) -> Verdict (one for each
budget) -> Report. All sizes are unrounded bytes.
"""

import math
import re
from enum import StrEnum
from fractions import Fraction
from typing import Annotated, Any

import msgspec

from memcalc.errors import UsageError
from memcalc.records.measurement import Measurement
from memcalc.records.plan import Plan
from memcalc.records.prediction import Prediction
from memcalc.units import parse_bytes

Bytes = Annotated[int, msgspec.Meta(ge=0)]


class Rule(StrEnum):
    """How a budget judges its figure."""

    MAX = "max"
    FITS = "fits"
    GROWTH = "growth"
    """Against the baseline."""


class Status(StrEnum):
    """The outcome for a budget, worst first."""

    OVER = "over"
    UNKNOWN = "unknown"
    """It could not be told, such as growth without a baseline."""
    HOLDS = "holds"


class Where(msgspec.Struct, frozen=True, kw_only=True):
    """A place in a budget file."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class Amount(msgspec.Struct, frozen=True, kw_only=True):
    """A limit in a budget file; exactly one of the fields beside ``text`` is known."""

    text: str
    bytes: int | None = None
    percent: Fraction | None = None
    per_parameter: Fraction | None = None
    """Bytes for each parameter of the model."""

    @property
    def is_decimal(self) -> bool:
        """True if written in kB, MB, GB or TB, which many confuse with the binary units."""
        return self.bytes is not None and _DECIMAL.search(self.text) is not None

    def resolve(self, whole: int) -> int:
        """Return the amount in bytes; a percentage is taken of ``whole`` and rounded down."""
        return int(whole * self.percent / 100) if self.percent is not None else self.bytes or 0


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """A limit on one figure of one run."""

    run: str
    rule: Rule
    metric: str
    """``peak.allocated``, ``optimizer_state``, ``bytes_per_parameter``, ...; see metrics.py."""
    amount: Amount | None = None
    """``None`` for ``fits``: the GPU decides."""
    gpu: str | None = None
    margin: Amount | None = None
    """To be kept free below the limit."""
    where: Where

    @property
    def name(self) -> str:
        """The name of the limit, without the run."""
        if self.rule is Rule.FITS:
            return f"fits {self.gpu}"
        return f"{self.metric} growth" if self.rule is Rule.GROWTH else self.metric


class BudgetedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A training run and its budgets."""

    name: str
    plan: Plan
    method: str = "trace"
    lengths: str | None = None
    """Batches of varying length that it is judged over; ``None``: all are as long as the plan's."""
    budgets: tuple[Budget, ...]
    lines: dict[str, int] = msgspec.field(default_factory=dict)
    """Line of each key of the plan, also where it comes from the defaults."""
    where: Where


class BudgetFile(msgspec.Struct, frozen=True, kw_only=True):
    """All budgets of one file."""

    path: str
    runs: tuple[BudgetedRun, ...]
    baseline: str
    """Where the baseline is, or would be."""


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """The facts about one run; at least one field is set."""

    prediction: Prediction | None = None
    measurement: Measurement | None = None
    error: str | None = None
    doubt: str = ""
    """A fact that could not be checked; the run is judged all the same."""


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """A figure of one run in bytes, or None with the reason."""

    bytes: int | None
    source: str = "estimated"
    """``estimated`` or ``measured``."""
    reason: str = ""


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a run when its baseline was written."""

    plan: dict[str, object]
    source: str
    """``trace``, ``analytic``, or the device that was measured."""
    figures: Annotated[dict[str, Bytes], msgspec.Meta(min_length=1)]
    parameters: Bytes


class Baseline(msgspec.Struct, frozen=True, kw_only=True):
    """The committed figures that growth is judged against."""

    path: str = ""
    versions: dict[str, str]
    runs: dict[str, Known]


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """A budget and its outcome."""

    budget: Budget
    status: Status
    value: int | None = None
    limit: int | None = None
    """Bytes allowed, less the margin; for growth, the baseline and the allowed growth."""
    before: int | None = None
    """The same figure in the baseline."""
    parameters: int | None = None
    """Set where figures are to be shown per parameter."""
    source: str = ""
    """``estimated`` or ``measured``."""
    reason: str = ""
    remedy: str = ""
    """The changes that would bring it under; empty: unknown."""

    @property
    def difference(self) -> int | None:
        """Bytes over the limit; negative when it holds."""
        return None if self.value is None or self.limit is None else self.value - self.limit

    @property
    def change(self) -> int | None:
        """Bytes more than in the baseline."""
        return None if self.value is None or self.before is None else self.value - self.before


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a check; verdicts are worst first."""

    verdicts: tuple[Verdict, ...]
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """How sizes were read, and files that were written."""
    versions: dict[str, str] = msgspec.field(default_factory=dict)

    def count(self, status: Status) -> int:
        """Return the number of verdicts with this status."""
        return sum(verdict.status is status for verdict in self.verdicts)

    @property
    def failures(self) -> tuple[Verdict, ...]:
        """The verdicts that do not hold."""
        return tuple(v for v in self.verdicts if v.status in (Status.OVER, Status.UNKNOWN))


PERCENT = r"[0-9]{1,6}(?:\.[0-9]{1,9})?"
_PERCENT = re.compile(rf"\s*({PERCENT})\s*%\s*")
LONGEST = 40
_DECIMAL = re.compile(r"[0-9\s][kKmMgGtT][bB]\s*$")


def size(value: Any) -> Amount:
    """Parse a size text such as "4 GiB".

    Raises:
        UsageError: it is not a text with a number and a unit.
    """
    if not isinstance(value, str):
        raise UsageError(f'{_shorten(value)} is not a size: write a number and a unit, as "4 GiB".')
    if len(value) > LONGEST:
        raise UsageError(f"{_shorten(value)} is no size that fits a machine.")
    return Amount(text=value.strip(), bytes=parse_bytes(value))


def share_or_size(value: Any) -> Amount:
    """Parse a percentage or a size, such as "2%" or "50 MiB".

    Raises:
        UsageError: it is neither.
    """
    match = _PERCENT.fullmatch(value) if isinstance(value, str) else None
    if match is not None:
        return Amount(text=str(value).strip(), percent=Fraction(match[1]))
    try:
        return size(value)
    except UsageError:
        advice = 'write a percentage or a size, as "2%" or "50 MiB".'
        raise UsageError(f"{_shorten(value)} is neither: {advice}") from None


def per_parameter(value: Any) -> Amount:
    """Check a number of bytes per parameter and return it as an amount.

    Raises:
        UsageError: it is not a positive number.
    """
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or not 0 < value < 1e9:
        raise UsageError(f"{_shorten(value)} is not a number of bytes: write one, as 10 or 2.5.")
    return Amount(text=f"{value:g} B/parameter", per_parameter=Fraction(str(value)))


def _shorten(value: Any) -> str:
    """Return ``repr`` of a value, cut to a length for messages."""
    text = repr(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
