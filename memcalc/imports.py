"""Imports a user's code by name: ``package.module:name`` or ``file.py:name``.

Only child processes load it: their code may print, exit or never return.
"""

import importlib
import importlib.util
import os
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from memcalc.errors import UsageError
from memcalc.version import pip_line

_WORD = r"[A-Za-z_]\w*"
_FORM = re.compile(rf"(?P<place>{_WORD}(?:\.{_WORD})*|[^:]*\.py):(?P<name>{_WORD}(?:\.{_WORD})*)")


def is_named(text: str) -> bool:
    """Return True for ``package.module:name`` or ``file.py:name``."""
    return _FORM.fullmatch(text) is not None


def load(text: str) -> Any:
    """Import the object named ``package.module:name`` or ``file.py:name``.

    Raises:
        UsageError: there is no such file, module or object, or its code fails, in its own words.
    """
    match = _FORM.fullmatch(text)
    assert match is not None
    place, name = match["place"], match["name"]
    found: Any = _import_file(place) if place.endswith(".py") else _import_module(place)
    for part in name.split("."):
        if not hasattr(found, part):
            raise UsageError(f"{place} has no {name}.")
        found = getattr(found, part)
    return found


def line(error: BaseException) -> str:
    """Return an error's message in one line; for a failed import, its cause's message."""
    while isinstance(error, ImportError) and error.__cause__ is not None:
        error = error.__cause__
    return " ".join(str(error).split())[:300].rstrip(".!") or type(error).__name__


def _import_module(name: str) -> ModuleType:
    _add_to_path(os.getcwd())
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise UsageError(f"Cannot import {name}: {_message(error)}{_pip_hint(error)}.") from None


def _import_file(text: str) -> ModuleType:
    path = Path(os.path.realpath(os.path.expanduser(text)))
    if not os.path.isfile(path):
        raise UsageError(f"There is no file {text}.")
    # What stands beside the file can be imported, as when it is run.
    _add_to_path(str(path.parent))
    known = sys.modules.get(path.stem)
    if known is not None and getattr(known, "__file__", None) == str(path):
        return known
    # Another module may have the file's name already.
    name = path.stem if known is None else f"{path.stem} of {path.parent}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        sys.modules.pop(name, None)
        told = f"{_message(error)}{_pip_hint(error)}"
        raise UsageError(f"{text} fails when it is imported: {told}.") from None
    return module


def _add_to_path(folder: str) -> None:
    """Add a folder to ``sys.path`` for good: imported code may import more when it runs."""
    if folder not in sys.path:
        sys.path.insert(0, folder)


def _pip_hint(error: Exception) -> str:
    """Return a phrase with the pip command if a package is missing, else ""."""
    while isinstance(error.__cause__, ImportError):
        error = error.__cause__
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return ""
    return f": type {pip_line([error.name.partition('.')[0]])}, or run it where that is"


def _message(error: Exception) -> str:
    plain = isinstance(error, ImportError)
    return line(error) if plain else f"{type(error).__name__}: {line(error)}"
