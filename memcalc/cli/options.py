"""The options that describe a plan, the same for every verb that takes one."""

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any

from memcalc.catalog import plan as plans
from memcalc.catalog.settings import spelled_out
from memcalc.cli import completion
from memcalc.cli.command import (
    Command,
    argument,
    declared,
    file_option,
    option,
    say,
    show_all_options,
    verb,
)
from memcalc.cli.recipes import recipe_of
from memcalc.dialects import FILES
from memcalc.errors import UsageError
from memcalc.estimation.question import shell_notes
from memcalc.files import untrusted_values
from memcalc.records.fields import COMPARED, FIELDS, Field, varied_settings
from memcalc.records.plan import Plan

SEVERAL = ("gpu", *(name for name in COMPARED if name != "gpu"))
"""Settings that take several values with commas between; each makes a plan of its own."""
_ALSO = {"gpu": "-g", "batch": "--batch-size"}
"""Second names of options, as other tools have them."""
_METAVARS = {int: "N", float: "X", str: "TEXT"}
_NAMED = {"gpu": "GPU", "optim": "NAME", "alloc_conf": "CONF", "torch": "VERSION"}
_NAMED |= {"lora": "r=16", "rank": "N", "transformers": "VERSION", **dict.fromkeys(FILES, "FILE")}


def plan_option(name: str) -> Any:
    """The option of a plan's field, for ``Annotated``."""
    field = FIELDS[name]
    several = "Several: a comma list." if name in SEVERAL and not field.typed else ""
    words = " ".join(filter(None, (field.help, field.typed, several)))
    if field.kind is bool:
        return option(f"--{field.option}/--no-{field.option}", words, rich_help_panel=field.group)
    also = [_ALSO[name]] if name in _ALSO else []
    return option(
        *also,
        f"--{field.option}",
        words,
        metavar=_NAMED.get(field.name, "NAME" if field.choices else _METAVARS[field.kind]),
        autocompletion=completion.offers(field),
        rich_help_panel=field.group,
    )


def _parameter(field: Field) -> Parameter:
    """A field of a plan as an argument or option; what is typed, the field itself reads."""
    if field.name == "model":
        told = argument(field.help, autocompletion=completion.models, metavar="MODEL")
        return _declared("model", str | None, told)
    kind: Any = list[str] if field.repeats else bool if field.kind is bool else str
    return _declared(field.name, kind | None, plan_option(field.name))


def _declared(name: str, kind: Any, told: Any) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, told])


def with_plan(*examples: str) -> Callable[[Callable[..., None]], Command]:
    """Make a verb that takes a plan; its function gets ``settings`` in place of the options."""

    def made(function: Callable[..., None]) -> Command:
        model, *rest = (_parameter(field) for field in FIELDS.values() if field.option is not None)
        file = file_option("--plan", "TOML file with these settings.")
        rest.append(_declared("plan_file", Path | None, file))
        shown = option("--help-all", "", hidden=True, is_eager=True, callback=show_all_options)
        whole = Parameter(
            "help_all", Parameter.KEYWORD_ONLY, default=False, annotation=Annotated[bool, shown]
        )
        own = dict(signature(function, eval_str=True).parameters)
        del own["settings"]

        @functools.wraps(function)
        def run(help_all: bool, **typed: Any) -> None:
            given = {one.name: typed.pop(one.name) for one in (model, *rest)}
            function(settings=settings_of(given), **typed)

        # The verb's own come first in help.
        declared(run, [model, *own.values(), *rest, whole])
        return verb(*examples, fetches=True)(run)

    return made


def settings_of(given: dict[str, Any]) -> dict[str, Any]:
    """Join the repository's defaults, the plan file and the command line; the last wins.

    Raises:
        UsageError: a file cannot be read, or a text is not understood.
    """
    path = given.pop("plan_file")
    written: dict[str, Any] = untrusted_values.toml(path) if path is not None else {}
    typed = {name: _read(name, told) for name, told in given.items() if told not in (None, [], ())}
    left = {key: value for key, value in written.items() if key.replace("-", "_") not in typed}
    return {**_defaults({**left, **typed}), **left, **typed}


def _defaults(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the ``[defaults]`` of the repository's memcalc.toml or pyproject.toml add.

    A recipe and a preset say themselves how is trained: beside one it is the GPU alone.
    """
    from memcalc.budgets import source

    try:
        file = source.discover(Path.cwd())
    except (UsageError, OSError):
        return {}
    table = source.load(file).table(("defaults",))
    alone = recipe_of(settings) is not None or "preset" in settings
    wanted = ("gpu",) if alone else [name for name in FIELDS if FIELDS[name].option is not None]
    found = {name: table[name] for name in wanted if name in table and name not in settings}
    if found:
        told = ", ".join(f"{name} = {value}" for name, value in found.items())
        say(f"memcalc: {told}, by the defaults of {source.shown_path(file)}")
    return found


def _read(name: str, told: Any) -> Any:
    """Return what a text, texts or a switch stand for; several values as a list."""
    if name in SEVERAL and "," in told:
        return [FIELDS[name].read(part.strip()) for part in told.split(",")]
    return FIELDS[name].read(tuple(told) if isinstance(told, list) else told)


def understood(words: Sequence[str]) -> dict[str, Any]:
    """The settings that these words would be on the command line of ``memcalc estimate``.

    Raises:
        UsageError: of typer: there is no such option.
    """
    taken: list[dict[str, Any]] = []
    command = with_plan()(lambda settings: taken.append(settings))
    with command.make_context("memcalc estimate", list(words)) as context:
        command.invoke(context)
    return taken[0]


def plans_of(settings: dict[str, Any]) -> list[Plan]:
    """Return a plan for each value asked for, and for each combination of them."""
    several = {name: settings[name] for name in SEVERAL if isinstance(settings.get(name), list)}
    if settings.get("optim") in ("all", ["all"]):
        from memcalc import registry

        usable = [row for row in registry.rows() if row.closed_form and not row.broken]
        several["optim"] = [row.name for row in usable]
    asked = [
        spelled_out({**settings, **dict(zip(several, values, strict=True))})
        for values in itertools.product(*several.values())
    ]
    for taken in filter(None, dict.fromkeys(map(plans.taken_as, asked))):
        say(f"memcalc: {taken}")
    return _noted([plans.make(one) for one in asked])


def _noted(plans: list[Plan]) -> list[Plan]:
    """Say which variables of this shell are left out, and return the plans."""
    for note in shell_notes(plans[0]) if plans else ():
        say(f"memcalc: {note}.")
    return plans


def plan_of(settings: dict[str, Any], what: str) -> Plan:
    """The one plan of the settings; ``what`` begins the sentence that refuses several.

    Raises:
        UsageError: there are several, or one cannot be understood.
    """
    plans = plans_of(settings)
    if len(plans) > 1:
        named = " and ".join(f"--{name}" for name in SEVERAL if name in varied_settings(plans))
        raise UsageError(f"{what} one plan at a time: give {named} one value.")
    return plans[0]
