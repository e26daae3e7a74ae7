"""Writes a plan back into the recipe that it was read from."""

from pathlib import Path
from typing import Any

from memcalc import dialects, registry
from memcalc.catalog.plan import make
from memcalc.catalog.settings import merge_recipe
from memcalc.dialects import edit, trainer
from memcalc.dialects.recipe import read_text
from memcalc.errors import UsageError
from memcalc.records.fields import FIELDS
from memcalc.records.plan import Plan
from memcalc.records.values import format_scalar

_UNWRITTEN_FIELDS = ("gpu", "devices", "rank", "torch", "transformers", "assumed", "unread",
                    "target", "module_loading")  # fmt: skip

_SAME: tuple[set[str | None], ...] = ({None, "none"},)
"""Values of fields that mean the same."""


def rewrite(file: str, plan: Plan) -> str:
    """Return a recipe file's text, changed to express a plan.

    Settings that have no key in the recipe's format become comments at the top.

    Raises:
        UsageError: the recipe cannot be read.
    """
    path = Path(file).expanduser()
    before = read_text(path)
    dialect, data = dialects.parse(before, path)
    found = dialect.read(data, file, {"devices": plan.devices})
    old, new = dialect.write(_make_plan(found, plan)), dialect.write(plan)
    changes = {
        found.spelled.get(key, key): new.get(key)
        for key in dict.fromkeys([*new, *old])
        if new.get(key) != old.get(key)
    }
    changed = edit.change_keys(before, path.suffix, changes)
    return "".join(f"# {line}\n" for line in _list_unwritten(changed, path, file, plan)) + changed


def _list_unwritten(changed: str, path: Path, file: str, plan: Plan) -> list[str]:
    """Return a comment line for each setting of a plan that the recipe cannot express."""
    if path.suffix == ".json":
        return []
    dialect, data = dialects.parse(changed, path)
    try:
        again = _make_plan(dialect.read(data, file, {"devices": plan.devices}), plan)
    except UsageError as error:
        return [f"memcalc does not read this back: {error}"]
    differ = [
        name
        for name in FIELDS
        if name not in _UNWRITTEN_FIELDS
        and {getattr(again, name), getattr(plan, name)} not in _SAME
        and getattr(again, name) != getattr(plan, name)
    ]
    if plan.loop == "trainer":
        # The Trainer keeps neither by default.
        off = {name for name in ("keep_outputs", "kv_cache") if not getattr(plan, name)}
        differ = [name for name in differ if name not in off]
    if "optim" in differ and registry.of(again).row == registry.of(plan).row:
        differ.remove("optim")
    named = trainer.optimizer_name(plan)
    if plan.loop == "trainer" and named and named == trainer.optimizer_name(again):
        differ = [name for name in differ if name not in ("optim", "optim_args")]
    return [f"not in this recipe: {name} = {_show_value(getattr(plan, name))}" for name in differ]


def _make_plan(found: dialects.Recipe, plan: Plan) -> Plan:
    """Make the plan of a recipe with the GPUs, task and model of another plan."""
    given = {"gpu": plan.gpu, "devices": plan.devices, "task": plan.task}
    given |= {} if found.settings.get("model") else {"model": plan.model}
    return make(merge_recipe(found, given))


def _show_value(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(f"{key}={one}" for key, one in value) or "none"
    return format_scalar(value)
