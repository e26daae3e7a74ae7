"""From what a budget file says to an amount: ``"14.5 GiB"``, ``"15 GB"``, ``"2%"``, ``10``."""

import math
import re
from fractions import Fraction
from typing import Any

from memcalc.budgets.records import Amount
from memcalc.errors import UsageError
from memcalc.units import parse_bytes

PERCENT = r"[0-9]{1,6}(?:\.[0-9]{1,9})?"
_PERCENT = re.compile(rf"\s*({PERCENT})\s*%\s*")
LONGEST = 40
_DECIMAL = re.compile(r"[0-9\s][kKmMgGtT][bB]\s*$")


def size(value: Any) -> Amount:
    """Read a size in bytes.

    Raises:
        UsageError: it is not a text with a number and a unit.
    """
    if not isinstance(value, str):
        raise UsageError(f'{_shown(value)} is not a size: write a number and a unit, as "4 GiB".')
    if len(value) > LONGEST:
        raise UsageError(f"{_shown(value)} is no size that fits a machine.")
    return Amount(text=value.strip(), bytes=parse_bytes(value))


def share_or_size(value: Any) -> Amount:
    """Read a percentage or a size.

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
        raise UsageError(f"{_shown(value)} is neither: {advice}") from None


def per_parameter(value: Any) -> Amount:
    """Read a number of bytes per parameter.

    Raises:
        UsageError: it is not a positive number.
    """
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or not 0 < value < 1e9:
        raise UsageError(f"{_shown(value)} is not a number of bytes: write one, as 10 or 2.5.")
    return Amount(text=f"{value:g} B/parameter", per_parameter=Fraction(str(value)))


def is_decimal(amount: Amount) -> bool:
    """Was it written in kB, MB, GB or TB, of which many think as of the binary units?"""
    return amount.bytes is not None and _DECIMAL.search(amount.text) is not None


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
