"""Reads the options that describe a plan, for every verb that takes one."""

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from memcalc.catalog import plan as plans
from memcalc.catalog.settings import expand_settings
from memcalc.cli.command import Command, say
from memcalc.cli.declare import SEVERAL, verb
from memcalc.cli.recipes import find_recipe
from memcalc.errors import UsageError
from memcalc.estimation.question import shell_notes
from memcalc.files import untrusted_values
from memcalc.records.fields import FIELDS, keep_options, varied_settings
from memcalc.records.plan import Plan


def with_plan(*examples: str) -> Callable[[Callable[..., None]], Command]:
    """Return a decorator for a verb with a plan's options; its function gets ``settings``."""
    return verb(*examples, fetches=True, settings_of=read_settings)


def read_settings(given: dict[str, Any]) -> dict[str, Any]:
    """Merge the repository's defaults, the plan file and the command line; the last wins.

    Raises:
        UsageError: a file cannot be read, or a text is not understood.
    """
    path = given.pop("plan_file")
    written: dict[str, Any] = untrusted_values.toml(path) if path is not None else {}
    typed = {
        name: _read_option(name, told) for name, told in given.items() if told not in (None, [], ())
    }
    left = {key: value for key, value in written.items() if key.replace("-", "_") not in typed}
    return {**_read_defaults({**left, **typed}), **left, **typed}


def _read_defaults(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ``[defaults]`` of the repository's budget file that add to the settings.

    A recipe and a preset say themselves how is trained: beside one it is the GPU alone.
    """
    from memcalc.budgets import source

    try:
        file = source.discover(Path.cwd())
    except (UsageError, OSError):
        return {}
    table = source.load(file).table(("defaults",))
    alone = find_recipe(settings) is not None or "preset" in settings
    wanted = ("gpu",) if alone else [name for name in FIELDS if FIELDS[name].option is not None]
    found = {name: table[name] for name in wanted if name in table and name not in settings}
    if found:
        told = ", ".join(f"{name} = {value}" for name, value in found.items())
        say(f"memcalc: {told}, by the defaults of {source.shown_path(file)}")
    return found


def _read_option(name: str, told: Any) -> Any:
    """Return an option's parsed value; a comma list as a list where several are allowed."""
    if name in SEVERAL and "," in told:
        return [FIELDS[name].read(part.strip()) for part in told.split(",")]
    return FIELDS[name].read(tuple(told) if isinstance(told, list) else told)


def make_plans(settings: dict[str, Any]) -> list[Plan]:
    """Make a plan for each combination of the settings' values, such as two optimizers."""
    several = {name: settings[name] for name in SEVERAL if isinstance(settings.get(name), list)}
    if settings.get("optim") in ("all", ["all"]):
        from memcalc import registry

        usable = [row for row in registry.rows() if row.closed_form and not row.broken]
        several["optim"] = [row.name for row in usable]
    typed = [
        {**settings, **dict(zip(several, values, strict=True))}
        for values in itertools.product(*several.values())
    ]
    asked = list(map(expand_settings, typed))
    for taken in filter(None, dict.fromkeys(map(plans.describe_gpu_name, asked))):
        say(f"memcalc: {taken}")
    made = [plans.make(one) for one in asked]
    if find_recipe(settings) is not None:
        for plan, words in zip(made, typed, strict=True):
            keep_options(plan, words)
    for note in shell_notes(made[0]) if made else ():
        say(f"memcalc: {note}.")
    return made


def make_plan(settings: dict[str, Any], what: str) -> Plan:
    """Make the only plan of the settings; ``what`` begins the error for several.

    Raises:
        UsageError: there are several, or one cannot be understood.
    """
    plans = make_plans(settings)
    if len(plans) > 1:
        named = " and ".join(f"--{name}" for name in SEVERAL if name in varied_settings(plans))
        raise UsageError(f"{what} one plan at a time: give {named} one value.")
    return plans[0]
