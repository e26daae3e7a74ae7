"""The options that describe a plan, the same for every verb that takes one."""

import functools
from collections.abc import Callable, Sequence
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any

from memcalc.catalog import plan as plans
from memcalc.catalog.settings import spelled_out
from memcalc.cli import completion
from memcalc.cli.command import Command, argument, declared, file_option, option, say, verb
from memcalc.dialects import FILES
from memcalc.errors import UsageError
from memcalc.estimation.question import shell_notes
from memcalc.files import untrusted_values
from memcalc.records.fields import FIELDS, Field
from memcalc.records.plan import Plan

_METAVARS = {int: "N", float: "X", str: "TEXT"}
_NAMED = {"gpu": "GPU", "optim": "NAME", "alloc_conf": "CONF", "torch": "VERSION"}
_NAMED |= {"lora": "r=16", "rank": "N", "transformers": "VERSION", **dict.fromkeys(FILES, "FILE")}


def plan_option(name: str) -> Any:
    """The option of a plan's field, for ``Annotated``."""
    field = FIELDS[name]
    words = f"{field.help} {field.typed}".strip()
    if field.kind is bool:
        return option(f"--{field.option}/--no-{field.option}", words, rich_help_panel=field.group)
    return option(
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
        own = dict(signature(function, eval_str=True).parameters)
        del own["settings"]

        @functools.wraps(function)
        def run(**typed: Any) -> None:
            given = {one.name: typed.pop(one.name) for one in (model, *rest)}
            function(settings=settings_of(given), **typed)

        # The verb's own come first in help.
        declared(run, [model, *own.values(), *rest])
        return verb(*examples, fetches=True)(run)

    return made


def settings_of(given: dict[str, Any]) -> dict[str, Any]:
    """Join the plan file and the command line; the command line wins.

    Raises:
        UsageError: the file cannot be read, or a text is not understood.
    """
    path = given.pop("plan_file")
    written: dict[str, Any] = untrusted_values.toml(path) if path is not None else {}
    typed = {
        name: FIELDS[name].read(tuple(told) if isinstance(told, list) else told)
        for name, told in given.items()
        if told not in (None, [], ())
    }
    left = {key: value for key, value in written.items() if key.replace("-", "_") not in typed}
    return {**left, **typed}


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
    """One plan for each optimizer asked for."""
    settings = spelled_out(settings)
    taken = plans.taken_as(settings)
    if taken:
        say(f"memcalc: {taken}")
    wanted = settings.get("optim")
    if wanted is None:
        return _noted([plans.make(settings)])
    names = wanted if isinstance(wanted, list) else [wanted]
    if isinstance(wanted, str) and "," in wanted:
        names = [name.strip() for name in wanted.split(",")]
    if names == ["all"]:
        from memcalc import registry

        usable = [row for row in registry.rows() if row.closed_form and not row.broken]
        names = [row.name for row in usable]
    return _noted([plans.make({**settings, "optim": name}) for name in names])


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
        raise UsageError(f"{what} one optimizer at a time: name one with --optim.")
    return plans[0]
