"""Recipes that are named in place of a model, and written back with what changed."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from memcalc import dialects
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


def format_plan(plan: Plan, recipe: str | None) -> str:
    """Return a plan as the text of its recipe file with changes, or as a training script.

    Raises:
        UsageError: the recipe cannot be read, or no script expresses the plan.
    """
    if recipe is not None:
        from memcalc.catalog.rewrite import rewrite

        return rewrite(recipe, plan)
    from memcalc.advice.train_script import write
    from memcalc.estimation.question import look_up

    return write(look_up(plan))
