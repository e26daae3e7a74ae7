"""The data of a recipe format: one TOML file of its name in this folder."""

import ast
import functools
import importlib.util
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from memcalc.files import untrusted_values
from memcalc.files.artifact import decode


class Lora(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Keys of adapters."""

    switch: str
    """Turns adapters on."""
    on: str | bool
    off: str | bool | None = None
    rank: str
    targets: str
    dropout: str
    alpha: str = ""
    """Written too; empty: the framework's own alpha stays."""
    every: str = "all-linear"
    """Stands for all linear layers."""
    defaults: dict[str, Any] = {}
    """Values that the framework takes once adapters are on."""


class Quant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Keys of a base that bitsandbytes quantizes."""

    four: str = ""
    eight: str = ""
    """Switches of 4 and 8 bit; empty: a number of bits stands under ``bits``."""
    bits: str = ""
    method: str = ""
    methods: tuple[str, ...] = ()
    """Names of bitsandbytes under ``method``; the first is written."""
    kind: str
    """Key of nf4 or fp4."""
    double: str
    double_default: bool = False
    shown: bool = False
    """An answer names the defaults of 4 bit."""


class Format(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The known keys of a format."""

    base: str = ""
    """The format whose keys are known here too."""
    command: str = ""
    """Runs a recipe; ``{file}`` stands for its name."""
    task: str | None = None
    """The only task that its recipes train for."""
    marks: str = ""
    """Keys by which a file of this format is recognized."""
    keys: dict[str, str] = {}
    """Keys that hold a setting of a plan, by the setting; the first is written."""
    no_effect: str = ""
    """Names and patterns of keys that change no byte of a training step."""
    ignored: str = ""
    """Keys that are read, and whose values decide nothing alone."""
    refused: dict[str, str] = {}
    """Names and patterns of keys without a place in a plan, by what they ask for."""
    incomplete: bool = False
    """The framework has keys beside these, and memcalc does not know what they change."""
    noted: dict[str, str] = {}
    """Switches and factors that change memory a little, by what an answer says of them."""
    defaults: dict[str, Any] = {}
    """What the framework takes where a key that changes memory is left out."""
    classes: dict[str, str] = {}
    """Classes that declare arguments, by their file, whose path begins with its package."""
    attention: dict[str, str] = {}
    """Values of the key of attention, by the plan's names for them."""
    names: dict[str, dict[str, str]] = {}
    """The plan's names by the format's, of models and of their parts."""
    unpadded: str = ""
    """Switches of batches without padding."""
    lora: Lora | None = None
    quant: Quant | None = None
    sections: dict[str, "Format"] = {}

    @property
    def reasons(self) -> dict[str, str]:
        """The reason why each key is refused, by key or pattern."""
        return {key: why for why, keys in self.refused.items() for key in keys.split()}

    @property
    def declared(self) -> list[dict[str, Any]]:
        """The default of each field of the framework's argument classes, one table a file."""
        return [declared_fields(file, *names.split()) for file, names in self.classes.items()]


@functools.cache
def read_format(name: str) -> Format:
    """Read a format's TOML file of known keys, joined with its base format's."""
    path = Path(__file__).with_name(f"{name}.toml")
    found = decode(Format, untrusted_values.parse_toml(path.read_text("utf-8")))
    if not found.base:
        return found
    base = read_format(found.base)
    return replace(
        found,
        no_effect=f"{found.no_effect} {base.no_effect}",
        refused={
            why: f"{found.refused.get(why, '')} {base.refused.get(why, '')}"
            for why in (*found.refused, *base.refused)
        },
        keys={**base.keys, **found.keys},
        classes={**found.classes, **base.classes},
    )


@functools.cache
def declared_fields(file: str, *classes: str) -> dict[str, Any]:
    """Parse the fields and defaults of classes in an installed package's file.

    The package is parsed and never imported. A default that is no literal is ``...``.
    """
    tree = parse_module(file)
    found: dict[str, Any] = {}
    for node in tree.body if tree is not None else ():
        if isinstance(node, ast.ClassDef) and node.name in classes:
            for line in node.body:
                if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                    found[line.target.id] = _read_default(line.value)
    return found


def parse_module(file: str) -> ast.Module | None:
    """Parse a file of an installed package without importing it; None if missing."""
    path = find_file(file)
    try:
        return ast.parse(path.read_text("utf-8")) if path is not None else None
    except (OSError, ValueError, SyntaxError):
        return None


def find_file(file: str) -> Path | None:
    """Return the path of an installed package's file without importing it, or None."""
    package, _, inside = file.partition("/")
    found = importlib.util.find_spec(package)
    folders = list(found.submodule_search_locations or ()) if found is not None else []
    path = Path(folders[0]) / inside if folders else None
    return path if path is not None and path.is_file() else None


def _read_default(node: ast.expr | None) -> Any:
    """Return a field's default if it is a literal, else ``...``."""
    if isinstance(node, ast.Call):
        node = next((one.value for one in node.keywords if one.arg == "default"), None)
    try:
        return ... if node is None else ast.literal_eval(node)
    except (ValueError, TypeError):
        return ...
