"""Finds a training configuration and reads what it says of memory; nothing in it is run."""

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from memcalc.budgets.detect import script, trainer
from memcalc.budgets.records import Detected
from memcalc.catalog.launch_files import accelerate
from memcalc.errors import SettingError, UsageError
from memcalc.files import untrusted_values
from memcalc.records.fields import FIELDS
from memcalc.workload import layouts

__all__ = ["Detected", "driven", "read", "scripts", "search"]
_LARGEST = 1 << 20
_MOST_FILES = 500
_ENDINGS = (".yaml", ".yml", ".json", ".py")
_HOW_MANY = "how many GPUs share the shards: memcalc init --devices N"
_KINDS = ("axolotl", "TrainingArguments", "accelerate")


def search(folder: Path) -> list[Detected]:
    """Every training configuration of a folder, the most telling kind first.

    Only the folder itself is read, not what is below it.
    """
    files = sorted(path for path in folder.iterdir() if path.suffix in _ENDINGS)
    found = [detected for path in files[:_MOST_FILES] if (detected := _read(path)) is not None]
    return sorted(found, key=lambda each: (_KINDS.index(each.kind), "model" not in each.settings))


def scripts(folder: Path) -> list[Path]:
    """Scripts that train, of a folder and of the folders in it; they are read, not run."""
    files = [*sorted(folder.glob("*.py")), *sorted(folder.glob("[!.]*/*.py"))]
    return [
        path.relative_to(folder)
        for path in files[:_MOST_FILES]
        if not path.name.startswith("test_") and (text := _text(path)) and script.trains(text)
    ]


def _text(path: Path) -> str:
    """Of a script; empty where it cannot be read."""
    if not os.path.isfile(path):
        return ""
    try:
        return untrusted_values.content(path, _LARGEST).decode("utf-8-sig")
    except (UsageError, ValueError):
        return ""


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
    known = main.settings
    if more.settings.get("parallel") not in (None, known.get("parallel")):
        # Arguments of another wrapper than the one that is launched have no meaning.
        known = {key: one for key, one in known.items() if not key.startswith("parallel")}
    return replace(
        main,
        file=f"{main.file} and {more.file}",
        settings={**more.settings, **known},
        unread=(*main.unread, *more.unread),
    )


def driven(settings: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Settings as memcalc can answer them, where a configuration names a loop and a layout.

    Returns:
        The settings, and what that leaves out.
    """
    found, devices = dict(settings), settings.get("devices") or 1
    several = devices > 1 or str(settings.get("gpu") or " ")[0].isdigit()
    if found.get("parallel") == "ddp" and not several:
        # One process is not wrapped.
        del found["parallel"]
        found.pop("parallel_args", None)
    if found.get("loop") != "trainer" or not (several or "parallel" in found):
        return found, ()
    by_machine = "device_mesh" in dict(found.get("parallel_args") or ())
    if found.get("parallel", "ddp") in layouts.driven() and not by_machine:
        return found, () if several else (_HOW_MANY,)
    del found["loop"]
    as_the_trainer = {"max_grad_norm": 1.0, "keep_outputs": False}
    note = "memcalc does not know the Trainer's loop with this layout: the plain loop is used"
    return {**as_the_trainer, **found}, (note,) if several else (note, _HOW_MANY)


def _read(path: Path) -> Detected | None:
    # A pipe in the folder would be waited for.
    if not os.path.isfile(path):
        return None
    try:
        data = untrusted_values.content(path, _LARGEST)
        if path.suffix == ".py":
            found = script.read(data.decode("utf-8-sig"), path.name, path.parent)
        else:
            values = (
                untrusted_values.loads(data)
                if path.suffix == ".json"
                else untrusted_values.yaml(data.decode())
            )
            found = _from_mapping(values, path) if isinstance(values, dict) else None
    except (UsageError, ValueError):
        return None
    return _only_plain(found) if found is not None else None


def _from_mapping(data: Mapping[str, Any], path: Path) -> Detected | None:
    if trainer.is_axolotl(data):
        kind, (settings, unread) = "axolotl", trainer.axolotl_settings(data, path.parent)
    elif accelerate.is_one(data):
        kind, settings, unread = "accelerate", {}, ()
        try:
            said = accelerate.said(data, str(path), {})
            settings, unread = said.settings, said.unread
        except UsageError as error:
            unread = (str(error).rstrip("."),)
    elif sum(key in data for key in trainer.STRONG) >= 2:
        kind, (settings, unread) = "TrainingArguments", trainer.settings(data, path.parent)
    else:
        return None
    return Detected(file=path.name, kind=kind, settings=settings, unread=unread)


def _only_plain(found: Detected) -> Detected:
    """Without values of a kind that no plan has: they are named instead."""
    kept: dict[str, Any] = {}
    left: list[str] = []
    for key, value in found.settings.items():
        with contextlib.suppress(SettingError):
            checked = FIELDS[key].check(value)
            # A model with a colon is code that an estimate would run: a file cannot ask for that.
            if checked is not None and (key not in ("model", "optim") or ":" not in checked):
                kept[key] = checked
        if key not in kept:
            left.append(f"{key} = {str(value)[:40]!r} is not read")
    return replace(found, settings=kept, unread=(*found.unread, *left))
