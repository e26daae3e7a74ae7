"""Finds a training configuration and reads what it says of memory; nothing in it is run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from memcalc.budgets.detect import accelerate, axolotl, script, trainer
from memcalc.budgets.detect.records import Detected
from memcalc.errors import SettingError, UsageError
from memcalc.files import plain
from memcalc.records.fields import FIELDS

__all__ = ["Detected", "read", "search"]
_LARGEST = 1 << 20
_MOST_FILES = 500
_ENDINGS = (".yaml", ".yml", ".json", ".py")
_KINDS = ("axolotl", "TrainingArguments", "accelerate")


def search(folder: Path) -> list[Detected]:
    """Every training configuration of a folder, the most telling kind first.

    Only the folder itself is read, not what is below it.
    """
    files = sorted(path for path in folder.iterdir() if path.suffix in _ENDINGS)
    found = [detected for path in files[:_MOST_FILES] if (detected := _read(path)) is not None]
    return sorted(found, key=lambda each: (_KINDS.index(each.kind), "model" not in each.settings))


def read(path: Path) -> Detected:
    """Read one configuration.

    Raises:
        UsageError: it cannot be read, or it is none that is known.
    """
    if not os.path.isfile(path):
        raise UsageError(f"There is no file {path}.")
    found = _read(path)
    if found is None:
        raise UsageError(
            f"{path} is not understood: give TrainingArguments (JSON, YAML or a script that "
            "calls them), or a YAML file of axolotl or accelerate."
        )
    return found


def merge(main: Detected, more: Detected) -> Detected:
    """Add what a second file knows and the first does not."""
    return replace(
        main,
        file=f"{main.file} and {more.file}",
        settings={**more.settings, **main.settings},
        unread=(*main.unread, *more.unread),
    )


def _read(path: Path) -> Detected | None:
    # A pipe in the folder would be waited for.
    if not os.path.isfile(path):
        return None
    try:
        data = plain.content(path, _LARGEST)
        if path.suffix == ".py":
            found = script.read(data.decode("utf-8-sig"), path.name)
        else:
            values = plain.loads(data) if path.suffix == ".json" else plain.yaml(data.decode())
            found = _from_mapping(values, path.name) if isinstance(values, dict) else None
    except (UsageError, ValueError):
        return None
    return _only_plain(found) if found is not None else None


def _from_mapping(data: Mapping[str, Any], file: str) -> Detected | None:
    for kind, module in (("axolotl", axolotl), ("accelerate", accelerate)):
        if module.is_one(data):
            settings, unread = module.settings(data)
            return Detected(file=file, kind=kind, settings=settings, unread=unread)
    if sum(key in data for key in trainer.STRONG) >= 2:
        settings, unread = trainer.settings(data)
        return Detected(file=file, kind="TrainingArguments", settings=settings, unread=unread)
    return None


def _only_plain(found: Detected) -> Detected:
    """Without values of a kind that no plan has: they are named instead."""
    kept: dict[str, Any] = {}
    left: list[str] = []
    for key, value in found.settings.items():
        try:
            plain = FIELDS[key].check(value)
        except SettingError:
            plain = None
        # A model with a colon is code that an estimate would run: a file cannot ask for that.
        if plain is None or (key in ("model", "optim") and ":" in plain):
            left.append(f"{key} = {str(value)[:40]!r} is not read")
        else:
            kept[key] = plain
    return replace(found, settings=kept, unread=(*found.unread, *left))
