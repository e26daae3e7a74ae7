"""The table of options, and of what other tools call them (options.toml)."""

import functools
from collections.abc import Collection
from pathlib import Path

import msgspec

from memcalc.files import untrusted_values
from memcalc.files.artifact import decode


class Row(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An option or argument."""

    names: str = ""
    argument: str = ""
    """What help calls an argument; empty: it is an option."""
    help: str = ""
    metavar: str = ""
    value: str = ""
    kinds: str = ""
    """Kinds of answers whose formats the help lists."""
    plan: bool = False
    """It is the plan's option of this name."""


class Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The contents of options.toml."""

    options: dict[str, Row]
    verbs: dict[str, dict[str, Row]]
    switches: dict[str, str]
    instead: dict[str, str]
    no_effect: dict[str, str]


@functools.cache
def read_table() -> Table:
    """Read options.toml."""
    text = Path(__file__).with_name("options.toml").read_text("utf-8")
    return decode(Table, untrusted_values.parse_toml(text))


def find_row(verb: str, name: str) -> Row:
    """Return the row of options.toml for a verb's parameter."""
    table = read_table()
    return table.verbs.get(verb, {}).get(name) or table.options[name]


def find_instead(name: str, options: Collection[str]) -> str | None:
    """Return what to type for another tool's option ``name``, or None if unknown."""
    plain, table = name.lstrip("-").replace("_", "-").lower(), read_table()
    if "MODEL" in options and plain in table.no_effect["names"].split():
        return "it changes no memory, so leave it out"
    if plain == "model" and "MODEL" in options:
        return "type MODEL without an option before it"
    ours = next((ours for ours, names in table.instead.items() if plain in names.split()), None)
    return f"type {ours}" if ours is not None and ours.split()[0] in options else None
