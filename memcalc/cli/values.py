"""Types of option values, checked like the settings of a plan."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

from msgspec import Meta

from memcalc.errors import UsageError
from memcalc.records.fields import FIELDS
from memcalc.records.plan import Method
from memcalc.records.values import plain, typed
from memcalc.units import parse_bytes


class Value(NamedTuple):
    """What an option takes."""

    metavar: str
    read: Callable[[str, str], Any]
    """The value from the option's name and its text, or a ``UsageError``."""


def of(kind: Any) -> Value:
    """A value of a declared type, such as ``Annotated[int, Meta(ge=1, le=8)]``."""
    metavar = {int: "N", float: "X"}.get(plain(kind), "NAME")
    return Value(metavar, lambda name, text: typed(name, kind, text))


def counted(least: int) -> Value:
    """A whole number that is not below this one."""
    return of(Annotated[int, Meta(ge=least, le=1 << 20)])


def _size(name: str, text: str) -> int:
    try:
        size = parse_bytes(text)
    except UsageError as error:
        raise UsageError(f"{name}: {error}") from None
    if not size:
        raise UsageError(f"{name} {text!r} must be more than 0 bytes.")
    return size


def _tokens(name: str, text: str) -> float:
    found = re.fullmatch(r"([0-9.]+) ?([KMBT])", text.upper())
    if found is not None:
        text = f"{found[1]}e{3 * ('KMBT'.index(found[2]) + 1)}"
    return float(typed(name, Annotated[float, Meta(gt=0, le=1e18)], text))


TEXT = Value("TEXT", lambda _, text: text)
SIZE = Value("SIZE", _size)
TOKENS = Value("X", _tokens)
SECONDS = of(Annotated[float, Meta(gt=0, le=1e9)])
METHOD = of(Method)
DEVICE = of(FIELDS["target"].type)
