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

__all__ = ["ENDINGS", "FILES", "Recipe", "dialects", "find", "read", "recognise"]

_ROOMS = "torchtune axolotl llamafactory swift accelerate deepspeed trl trainer".split()
"""All formats, those first whose keys nothing else has."""
FILES = ("recipe", "accelerate_config", "deepspeed")
"""Settings that name a file and stand for what it says."""
_ONLY = {"accelerate_config": "accelerate", "deepspeed": "deepspeed"}
ENDINGS = (".yaml", ".yml", ".json", ".sh")


@functools.cache
def dialects() -> dict[str, Any]:
    """Return the modules of all formats by name; they are imported when a recipe is read."""
    rooms = [importlib.import_module(f"{__name__}.{room}") for room in _ROOMS]
    return {room.NAME: room for room in rooms}


def recognise(data: Mapping[str, Any]) -> Any:
    """Find the module of a file's format by its keys; None: it is none of these."""
    return next((one for one in dialects().values() if one.is_one(data)), None)


def load(path: Path) -> Mapping[str, Any]:
    """Read a file as a table of settings, or a shell script's command as one.

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
        raise UsageError(f"{path} starts no training of swift, trl or llamafactory-cli.")
    return found


def parse(written: str, path: Path) -> tuple[Any, Mapping[str, Any]]:
    """Read the text of a recipe as its format's module and its table of settings.

    Raises:
        UsageError: it is no recipe.
    """
    data = _parse_settings(written, path)
    dialect = recognise(data)
    if dialect is None:
        raise _unknown(str(path))
    return dialect, data


def find(name: str) -> Path | None:
    """Find the recipe that is named in place of a model; None: it is a model's name.

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
        raise _unknown(name)
    return path


def _unknown(name: str) -> UsageError:
    return UsageError(f"{name} is no recipe that memcalc knows: it reads {', '.join(dialects())}.")


def read(setting: str, path: str, given: Mapping[str, Any]) -> Recipe:
    """Read the file of a setting in ``FILES``, with other settings of a plan.

    Raises:
        SettingError: it cannot be read, or asks for what memcalc does not answer.
    """
    place = Path(os.path.expanduser(path))
    try:
        if setting in _ONLY:
            room = importlib.import_module(f"{__name__}.{_ONLY[setting]}")
            found: Recipe = room.read(read_table(place), path, given)
            return found
        dialect, data = parse(read_text(place), place)
        return dialect.read(data, path, given)  # type: ignore[no-any-return]
    except UsageError as error:
        raise SettingError(setting, str(error)) from None
