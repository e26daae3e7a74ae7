"""Writes a plan back into the recipe that it was read from."""

from pathlib import Path
from typing import Any

from memcalc import dialects
from memcalc.catalog.plan import make
from memcalc.catalog.settings import merge_recipe
from memcalc.dialects import edit, trainer
from memcalc.dialects.recipe import read_text
from memcalc.errors import UsageError
from memcalc.records.fields import FIELDS
from memcalc.records.plan import Plan
from memcalc.records.values import format_setting

UNWRITTEN_FIELDS = ("gpu", "devices", "rank", "torch", "transformers", "assumed", "unread",
                    "target", "module_loading")  # fmt: skip
"""Fields of a plan that settings of a program do not hold: it is told them elsewhere."""


def rewrite(file: str, plan: Plan) -> str:
    """Return a recipe file's text, changed to express a plan.

    Settings that have no key in the recipe's format become comments at the top.

    Raises:
        UsageError: the recipe cannot be read.
    """
    path = Path(file).expanduser()
    before = read_text(path)
    dialect, found, old_plan = _read_plan(before, path, file, plan)
    old, new = dialect.write(old_plan), dialect.write(plan)
    changes = {
        found.spelled.get(key, key): new.get(key)
        for key in dict.fromkeys([*new, *old])
        if new.get(key) != old.get(key)
    }
    changed = edit.change_keys(before, path.suffix, changes)
    if path.suffix == ".json":
        return changed
    try:
        *_, again = _read_plan(changed, path, file, plan)
        left_out = _list_unwritten(plan, again)
    except UsageError as error:
        left_out = [f"memcalc does not read this back: {error}"]
    return "".join(f"# {line}\n" for line in left_out) + changed


def _list_unwritten(plan: Plan, again: Plan) -> list[str]:
    """Return a comment line for each setting of a plan that its recipe, read again, has not."""
    meant, read = trainer.settle(plan, plan.loop), trainer.settle(again, plan.loop)
    return [
        f"not in this recipe: {name} = {format_setting(getattr(plan, name))}"
        for name in FIELDS
        if name not in UNWRITTEN_FIELDS and getattr(read, name) != getattr(meant, name)
    ]


def _read_plan(text: str, path: Path, file: str, plan: Plan) -> tuple[Any, dialects.Recipe, Plan]:
    """Read a recipe's text: its dialect, its keys, and its plan on another plan's GPUs."""
    dialect, data = dialects.parse(text, path)
    found = dialect.read(data, file, {"devices": plan.devices})
    given = {"gpu": plan.gpu, "devices": plan.devices, "task": plan.task}
    given |= {} if found.settings.get("model") else {"model": plan.model}
    return dialect, found, make(merge_recipe(found, given))
