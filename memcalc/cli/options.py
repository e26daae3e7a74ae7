"""The options that describe a plan, the same for every verb that takes one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import click

from memcalc.catalog import plan as plans
from memcalc.catalog.launch_files import FILES, spelled_out
from memcalc.cli import complete
from memcalc.cli.command import FILE, Argument, Command, say, verb
from memcalc.cli.groups import GROUPS, OTHERS
from memcalc.errors import UsageError
from memcalc.files import untrusted_values
from memcalc.records.fields import FIELDS, Field
from memcalc.records.plan import Plan

_METAVARS = {int: "N", float: "X", str: "TEXT"}
_NAMED = {"gpu": "GPU", "optim": "NAME", "alloc_conf": "CONF", "torch": "VERSION"}
_NAMED["transformers"] = "VERSION"
_NAMED |= dict.fromkeys(FILES, "FILE")


def _parameter(field: Field) -> click.Parameter:
    """A field of a plan as an argument or option; what is typed, the field itself reads."""
    words = f"{field.help} {field.typed}".strip()
    if field.name == "model":
        return Argument(
            [field.name], required=False, explained=words, shell_complete=complete.models
        )
    if field.kind is bool:
        switch = f"--{field.option}/--no-{field.option}"
        return _Option(field, [field.name, switch], type=bool, default=None, help=words)
    return _Option(
        field,
        [field.name, f"--{field.option}"],
        type=str,
        metavar=_NAMED.get(field.name, "NAME" if field.choices else _METAVARS[field.kind]),
        shell_complete=complete.of(field),
        multiple=field.repeats,
        default=None,
        help=words,
    )


class _Option(click.Option):
    """An option of a plan, and the heading it stands under in help."""

    def __init__(self, field: Field, *names: Any, **more: Any) -> None:
        super().__init__(*names, **more)
        self.group = next((g for g, fields in GROUPS.items() if field.name in fields), OTHERS)


def settings_of(given: dict[str, Any]) -> dict[str, Any]:
    """Join the plan file and the command line; the command line wins.

    Raises:
        UsageError: the file cannot be read, or a text is not understood.
    """
    path = given.pop("plan_file")
    written: dict[str, Any] = untrusted_values.toml(path) if path is not None else {}
    typed = {
        name: FIELDS[name].read(told) for name, told in given.items() if told not in (None, ())
    }
    left = {key: value for key, value in written.items() if key.replace("-", "_") not in typed}
    return {**left, **typed}


def understood(words: Sequence[str]) -> dict[str, Any]:
    """The settings that these words would be on the command line of ``memcalc estimate``.

    Raises:
        click.UsageError: there is no such option.
    """
    taken: list[dict[str, Any]] = []
    command = with_plan(lambda settings: taken.append(settings))
    command.main(list(words), prog_name="memcalc estimate", standalone_mode=False)
    return taken[0] if taken else {}


def plans_of(settings: dict[str, Any]) -> list[Plan]:
    """One plan for each optimizer asked for."""
    settings = spelled_out(settings)
    taken = plans.taken_as(settings)
    if taken:
        say(f"memcalc: {taken}")
    wanted = settings.get("optim")
    if wanted is None:
        return [plans.make(settings)]
    names = wanted if isinstance(wanted, list) else [wanted]
    if isinstance(wanted, str) and "," in wanted:
        names = [name.strip() for name in wanted.split(",")]
    if names == ["all"]:
        from memcalc import registry

        usable = [row for row in registry.rows() if row.closed_form and not row.broken]
        names = [row.name for row in usable]
    return [plans.make({**settings, "optim": name}) for name in names]


def plan_of(settings: dict[str, Any], what: str) -> Plan:
    """The one plan of the settings.

    Args:
        settings: as ``with_plan`` gives them.
        what: the verb does, for the sentence that refuses several optimizers.

    Raises:
        UsageError: there are several, or one cannot be understood.
    """
    plans = plans_of(settings)
    if len(plans) > 1:
        raise UsageError(f"{what} one optimizer at a time: name one with --optim.")
    return plans[0]


def with_plan(command: Callable[..., None]) -> Command:
    """Make a verb that takes a plan; its function gets ``settings`` in place of the options."""
    model, *options = (_parameter(field) for field in FIELDS.values() if field.option is not None)
    file = click.Option(["plan_file", "--plan"], type=FILE, help="TOML file with these settings.")
    shared = [model, file, *options]
    names = {one.name for one in shared}

    @functools.wraps(command)
    def run(**typed: Any) -> None:
        given = {name: typed.pop(name) for name in list(typed) if name in names}
        command(settings=settings_of(given), **typed)

    return verb(run, shared)
