"""Reads values that are typed on the command line."""

import re
from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple

from msgspec import Meta

from memcalc.errors import UsageError
from memcalc.records.fields import FIELDS
from memcalc.records.values import Method, parse_value, plain
from memcalc.units import parse_bytes


class Value(NamedTuple):
    """The form of an option's value."""

    metavar: str
    read: Callable[[str, str], Any]
    """Makes the value of the option's name and its text, or raises ``UsageError``."""


def _make_checker(kind: Any) -> Value:
    """Return a reader of values of a type, such as ``Annotated[int, Meta(ge=1, le=8)]``."""
    metavar = {int: "N", float: "X"}.get(plain(kind), "NAME")
    return Value(metavar, lambda name, text: parse_value(name, kind, text))


def find_value(words: str) -> Value:
    """Return the reader named in options.toml; ``count 2``: a whole number from 2."""
    name, _, least = words.partition(" ")
    if name == "count":
        return _make_checker(Annotated[int, Meta(ge=int(least), le=1 << 20)])
    return VALUES[name]


def _read_size(name: str, text: str) -> int:
    try:
        size = parse_bytes(text)
    except UsageError as error:
        raise UsageError(f"{name}: {error}") from None
    if not size:
        raise UsageError(f"{name} {text!r} must be more than 0 bytes.")
    return size


def _read_tokens(name: str, text: str) -> float:
    found = re.fullmatch(r"([0-9.]+) ?([KMBT])", text.upper())
    if found is not None:
        text = f"{found[1]}e{3 * ('KMBT'.index(found[2]) + 1)}"
    return float(parse_value(name, Annotated[float, Meta(gt=0, le=1e18)], text))


VALUES = {
    "text": Value("TEXT", lambda _, text: text),
    "size": Value("SIZE", _read_size),
    "tokens": Value("X", _read_tokens),
    "seconds": _make_checker(Annotated[float, Meta(gt=0, le=1e9)]),
    "method": _make_checker(Method),
    "device": _make_checker(FIELDS["target"].type),
    "program": _make_checker(
        Literal["trainer", "accelerate", "axolotl", "llamafactory", "trl", "swift", "torchtune"]
    ),
    "shell": _make_checker(Literal["bash", "zsh", "fish"]),
}
