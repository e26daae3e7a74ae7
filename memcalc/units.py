"""Formats and parses byte counts; the only place that knows KiB from kB."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from memcalc.errors import UsageError

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

_FACTORS = {
    "B": 1,
    "KB": 1000,
    "MB": 1000**2,
    "GB": 1000**3,
    "TB": 1000**4,
    "KIB": KIB,
    "MIB": MIB,
    "GIB": GIB,
    "TIB": 1 << 40,
}
NUMBER = r"[0-9]{1,20}(?:\.[0-9]{1,20})?"
UNIT = r"(?:[kKmMgGtT][iI]?B|[kmgt]i?b|[bB])"
"""In large or small letters; a small b behind a large letter (``Gb``, ``Gib``) means bits."""
_SIZE = re.compile(rf"\s*({NUMBER})\s*({UNIT})\s*")
_BITS = re.compile(rf"\s*{NUMBER}\s*([KMGT][iI]?|[kmgt]I)b\s*")


def parse_bytes(text: str) -> int:
    """Parse a size such as ``14.5 GiB`` (1024³) or ``15 GB`` (1000³) to bytes.

    Returns:
        Whole bytes, rounded down.

    Raises:
        UsageError: the number or the unit is missing or unknown, or no machine has so much.
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        bits = _BITS.fullmatch(text)
        if bits is not None:
            raise UsageError(f"{text!r} is a size in bits: write {bits[1]}B for bytes.")
        units = "B, KiB, MiB, GiB, TiB, kB, MB, GB or TB"
        raise UsageError(f"{text!r} is not a size: write a number and a unit ({units}).")
    whole, _, fraction = match[1].partition(".")
    scale: int = 10 ** len(fraction)
    size: int = int(whole + fraction) * _FACTORS[match[2].upper()] // scale
    if size >= 1 << 63:
        raise UsageError(f"{text!r} is no size that fits a machine.")
    return size


def printed_bytes(text: str) -> tuple[int, int]:
    """Return the least and most bytes that print as a figure such as ``14.67 GiB``.

    Raises:
        UsageError: it is no size.
    """
    middle = parse_bytes(text)
    number, unit = text.split()
    decimals = len(number.partition(".")[2])
    # Rounded down: a figure in whole bytes is exact.
    half = _FACTORS[unit.upper()] // (2 * 10**decimals)
    return middle - half, middle + half


def format_bytes(count: int) -> str:
    """Return a byte count as text in the largest binary unit, with one decimal."""
    size = abs(count)
    for unit, factor in (("TiB", 1 << 40), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if size >= factor:
            return f"{count / factor:,.1f} {unit}"
    return f"{count} B"


def signed_bytes(change: int) -> str:
    """Return a change in bytes as text with its sign, in the largest binary unit."""
    return f"{'+' if change > 0 else '-'}{format_bytes(abs(change))}"


def format_count(count: int) -> str:
    """Return a parameter count as text: ``66M``, ``1.5B``."""
    for factor, letter in ((10**9, "B"), (10**6, "M")):
        # What would round to 1,000 of one letter is 1 of the next.
        if count >= 0.9995 * factor:
            return f"{count / factor:.3g}{letter}"
    return str(count)


def format_mib(count: int) -> str:
    """Return a byte count as text in MiB with one decimal."""
    return f"{count / MIB:,.1f} MiB"


class Unit(NamedTuple):
    """The unit of the figures of a table."""

    name: str
    bytes: int

    def number(self, count: int) -> str:
        """Return a byte count in this unit as text without the unit; "<0.1" instead of 0.0."""
        return _format_tenths(round(10 * count / self.bytes), count)

    def numbers(self, parts: Sequence[int]) -> list[str]:
        """Return the parts of a sum in this unit, rounded so that they add up to it.

        Parts that were rounded against the gap change, the closest to a half first and equal
        parts last: no part is off by more than one step.
        """
        exact = [10 * part / self.bytes for part in parts]
        found = list(map(round, exact))
        off = round(10 * sum(parts) / self.bytes) - sum(found)
        way = 1 if off > 0 else -1
        order = sorted(
            range(len(parts)),
            key=lambda at: (
                way * (found[at] - exact[at]) > 0,
                parts.count(parts[at]) > 1,
                way * (found[at] - exact[at]),
            ),
        )
        for at in order[: abs(off)]:
            found[at] += way
        return list(map(_format_tenths, found, parts))

    def write_difference(self, whole: int, *parts: int) -> str:
        """Return ``whole`` less ``parts`` in this unit, of the figures as rounded."""
        shown, *less = (round(10 * size / self.bytes) for size in (whole, *parts))
        return _format_tenths(shown - sum(less), whole - sum(parts))


def _format_tenths(count: int, size: int) -> str:
    return f"{count / 10:,.1f}" if count > 0 or size <= 0 else "<0.1"


def unit_for(largest: int) -> Unit:
    """Return GiB if the largest figure has 10 GiB or more, else MiB."""
    return Unit("GiB", GIB) if largest >= 10 * GIB else Unit("MiB", MIB)
