"""Finds a training configuration in a folder, or the scripts that train; nothing in it is run."""

import ast
import os
from pathlib import Path

from msgspec.structs import replace

from memcalc import dialects
from memcalc.dialects import Recipe
from memcalc.engine.source_lines import called_name
from memcalc.errors import SettingError, UsageError
from memcalc.files import untrusted_values

_LARGEST = 1 << 20
_MOST_FILES = 500
_KINDS = "axolotl LLaMA-Factory torchtune TRL ms-swift TrainingArguments accelerate".split()
"""The most telling first."""
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def search(folder: Path) -> list[Recipe]:
    """Find every training configuration file in a folder, the most specific dialect first.

    Only the folder itself is read, not what is below it.

    Raises:
        UsageError: there are recipes, and memcalc answers none of them.
    """
    found: list[Recipe] = []
    refused: list[UsageError] = []
    files = sorted(path for path in folder.iterdir() if path.suffix in dialects.ENDINGS)
    for path in files[:_MOST_FILES]:
        try:
            one = _read_if_known(path)
        except UsageError as error:
            refused.append(error)
            continue
        if one is not None and one.dialect in _KINDS:
            found.append(one)
    if refused and not found:
        raise refused[0]
    return sorted(
        found, key=lambda each: (_KINDS.index(each.dialect), "model" not in each.settings)
    )


def scripts(folder: Path) -> list[Path]:
    """Find Python files of a folder and its subfolders that train, by parsing them."""
    files = [*sorted(folder.glob("*.py")), *sorted(folder.glob("[!.]*/*.py"))]
    return [
        path.relative_to(folder)
        for path in files[:_MOST_FILES]
        if not path.name.startswith("test_") and (text := _read_script(path)) and trains(text)
    ]


def trains(text: str) -> bool:
    """Tell whether a script can be started and trains, by ``backward()`` or by some Trainer."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    started: list[ast.AST] = [node for node in tree.body if not isinstance(node, _DEFINITIONS)]
    if any(isinstance(node, ast.If) and "__name__" in ast.dump(node.test) for node in started):
        started = [tree]
    calls = (node for part in started for node in ast.walk(part) if isinstance(node, ast.Call))
    return any(
        (name := called_name(one.func)) == "backward" or name.endswith("Trainer") for one in calls
    )


def _read_script(path: Path) -> str:
    """Return the text of a script, or "" if it cannot be read."""
    # A pipe in the folder would be waited for.
    if not os.path.isfile(path):
        return ""
    try:
        return untrusted_values.content(path, _LARGEST).decode("utf-8-sig")
    except (UsageError, ValueError):
        return ""


def read(path: Path) -> Recipe:
    """Read a configuration file or a script with TrainingArguments as a recipe.

    Raises:
        UsageError: it cannot be read, it is none that is known, or memcalc does not answer it.
    """
    if not os.path.isfile(path):
        raise UsageError(f"There is no file {path}.")
    if path.suffix == ".py":
        raise UsageError(f"{path} is a script: type memcalc init -- python {path}.")
    found = _read_if_known(path)
    if found is None:
        raise UsageError(
            f"{path} is not understood: give a recipe of {', '.join(dialects.dialects())}."
        )
    return found


def _read_if_known(path: Path) -> Recipe | None:
    """Return the recipe in a file, or None if it holds none."""
    if path.suffix not in dialects.ENDINGS or not os.path.isfile(path):
        return None
    try:
        known = dialects.recognise(dialects.load(path))
    except UsageError:
        return None
    if known is None:
        return None
    try:
        return replace(dialects.read("recipe", str(path), {}), file=path.name)
    except SettingError as error:
        raise UsageError(str(error)) from None


def merge(main: Recipe, more: Recipe) -> Recipe:
    """Add to the first recipe the settings that only the second one has."""
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
