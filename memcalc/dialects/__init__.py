"""Configuration files of training frameworks: each format has one file here.

A file is data: nothing in it is run, and none of its framework's code. Every key becomes a setting
of a plan, is known to change no memory, or is refused by its name.
"""

import functools
import importlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from memcalc.dialects.recipe import Recipe, parse_table, read_table, read_text
from memcalc.errors import SettingError, UsageError

__all__ = ["ENDINGS", "FILES", "Recipe", "dialects", "find", "read", "recognise", "room"]

_ROOMS = "torchtune axolotl llamafactory swift accelerate deepspeed trl trainer".split()
"""All formats, those first whose keys nothing else has."""
FILES = ("recipe", "accelerate_config", "deepspeed")
"""Settings that name a file and stand for what it says."""
_ONLY = {"accelerate_config": "accelerate", "deepspeed": "deepspeed"}
ENDINGS = (".yaml", ".yml", ".json", ".sh")


@functools.cache
def dialects() -> dict[str, Any]:
    """Return the modules of all recipe formats by name, such as ``axolotl``."""
    return {found.NAME: found for found in map(room, _ROOMS)}


def room(name: str) -> Any:
    """Return the module of a recipe format by the name of its file, such as ``llamafactory``."""
    return importlib.import_module(f"{__name__}.{name}")


def recognise(data: Mapping[str, Any]) -> Any:
    """Return the module of a recipe's format by its keys, or None."""
    return next((one for one in dialects().values() if one.is_one(data)), None)


def load(path: Path) -> Mapping[str, Any]:
    """Read a file as a table of settings, or a shell script's training command as one.

    Raises:
        UsageError: it cannot be read, or holds something else.
    """
    return _parse_settings(read_text(path), path)


def _parse_settings(written: str, path: Path) -> Mapping[str, Any]:
    if path.suffix != ".sh":
        return parse_table(written, path)
    from memcalc.dialects import shell

    found = shell.command_in(written)
    if found is None:
        raise UsageError(
            f"{path} starts no training that memcalc knows: swift, trl, llamafactory-cli, or a "
            f"Python script with options of TrainingArguments."
        )
    return found


def parse(written: str, path: Path) -> tuple[Any, Mapping[str, Any]]:
    """Parse a recipe's text; return its format's module and its table of settings.

    Raises:
        UsageError: it is no recipe.
    """
    data = _parse_settings(written, path)
    dialect = recognise(data)
    if dialect is None:
        raise _make_unknown_error(str(path))
    return dialect, data


def find(name: str) -> Path | None:
    """Return the path of a recipe file named in place of a model, or None for a model's name.

    Raises:
        UsageError: a file is there that looks like a recipe, and is none that is known.
    """
    path = Path(os.path.expanduser(name))
    if path.suffix not in ENDINGS or not os.path.isfile(path):
        return None
    if path.suffix == ".json":
        try:
            return path if recognise(load(path)) is not None else None
        except UsageError:
            # A model's config, or a file of results, whose readers say what is wrong.
            return None
    if recognise(load(path)) is None:
        raise _make_unknown_error(name)
    return path


def _make_unknown_error(name: str) -> UsageError:
    return UsageError(f"{name} is no recipe that memcalc knows: it reads {', '.join(dialects())}.")


def read(setting: str, path: str, given: Mapping[str, Any]) -> Recipe:
    """Read the file that a setting names (a recipe or a launcher's file) as a recipe.

    Raises:
        SettingError: it cannot be read, or asks for what memcalc does not answer.
    """
    place = Path(os.path.expanduser(path))
    try:
        data: Mapping[str, Any]
        if setting in _ONLY:
            dialect, data = room(_ONLY[setting]), read_table(place)
        else:
            dialect, data = parse(read_text(place), place)
        found: Recipe = dialect.read(data, path, given)
        return found
    except UsageError as error:
        raise SettingError(setting, str(error)) from None
