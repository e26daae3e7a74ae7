"""Recipes that are named in place of a model, and written back with what changed."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from memcalc import dialects
from memcalc.cli.output import put
from memcalc.files import artifact
from memcalc.records.plan import Plan


def find_recipe(settings: Mapping[str, Any]) -> str | None:
    """Return the path of the recipe file that settings name, or None."""
    named = settings.get("recipe")
    model = settings.get("model")
    if named is None and isinstance(model, str) and dialects.find(model) is not None:
        named = model
    return named


def recipe_output(settings: Mapping[str, Any], output: Path | None) -> str | None:
    """Return the recipe file to rewrite into the output file, or None if an answer goes there.

    Raises:
        UsageError: no file can be there.
    """
    file = find_recipe(settings)
    if file is None or output is None or output.suffix == ".json":
        return None
    if output.suffix not in dialects.ENDINGS:
        return None
    artifact.check_place(output)
    return file


def write_recipe(file: str, plan: Plan, output: Path | None) -> None:
    """Write a recipe file's text, changed to express a plan, to a file or stdout."""
    from memcalc.catalog.rewrite import rewrite

    put(rewrite(file, plan), output)
