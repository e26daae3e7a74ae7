"""Makes commands of functions: their parameters are rows of options.toml, and a plan's fields."""

import functools
import inspect
from collections.abc import Callable, Iterable
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any

import typer

from memcalc.cli import offers
from memcalc.cli.command import Command, show_all_options
from memcalc.cli.output import formats, join_names
from memcalc.cli.table import find_row
from memcalc.cli.values import find_value
from memcalc.dialects import FILES
from memcalc.files.offline import stay_offline
from memcalc.records.fields import COMPARED, FIELDS, Field

AS_TYPED = {"ignore_unknown_options": True, "allow_interspersed_args": False}
"""Settings of a verb that takes a command: options behind the command are the command's own."""
SEVERAL = ("gpu", *(name for name in COMPARED if name != "gpu"))
"""Settings that take several values with commas between; each makes a plan of its own."""
_ALSO = {"gpu": "-g", "batch": "--batch-size"}
"""Second names of options, as other tools have them."""
_METAVARS = {int: "N", float: "X", str: "TEXT"}
_NAMED = {"gpu": "GPU", "optim": "NAME", "alloc_conf": "CONF", "torch": "VERSION"}
_NAMED |= {"lora": "r=16", "rank": "N", "transformers": "VERSION", **dict.fromkeys(FILES, "FILE")}


def verb(
    *examples: str, fetches: bool = False, settings_of: Any = None, **more: Any
) -> Callable[[Callable[..., None]], Command]:
    """Make a command of a function.

    Args:
        examples: what may be typed, for the end of its help.
        fetches: it may need what ``--offline`` forbids.
        settings_of: makes ``settings`` of a plan's options; None: the verb takes no plan.
        more: for typer.
    """

    def make_command(function: Callable[..., None]) -> Command:
        name = function.__name__
        name = function.__module__.rpartition(".")[2] if name == "command" else name
        own = {one.name: _declare(name, one) for one in _parameters(function)}
        plan = _plan_parameters() if own.pop("settings", None) is not None else []
        added = [_declare(name, _switch("offline"))] if fetches else []

        @functools.wraps(function)
        def run(**typed: Any) -> None:
            if typed.pop("offline", False):
                stay_offline()
            typed.pop("help_all", None)
            if plan:
                given = {one.name: typed.pop(one.name) for one in plan if one.name != "help_all"}
                typed["settings"] = settings_of(given)
            function(**typed)

        # The verb's own come first in help.
        _set_parameters(run, [*plan[:1], *own.values(), *plan[1:], *added])
        single = typer.Typer(add_completion=False, rich_markup_mode=None)
        words = inspect.getdoc(function)
        single.command(cls=Command, help=words, epilog="\n".join(examples), **more)(run)
        command = typer.main.get_command(single)
        assert isinstance(command, Command)
        return command

    return make_command


def _parameters(function: Callable[..., None]) -> Iterable[Parameter]:
    return inspect.signature(function, eval_str=True).parameters.values()


def _switch(name: str) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, default=False, annotation=bool)


def _set_parameters(function: Callable[..., None], parameters: Iterable[Parameter]) -> None:
    """Make these the parameters of a function, as typer reads them."""
    named = [one.replace(kind=Parameter.KEYWORD_ONLY) for one in parameters]
    function.__signature__ = inspect.Signature(named)  # type: ignore[attr-defined]
    function.__annotations__ = {one.name: one.annotation for one in named}


def _declare(verb_name: str, parameter: Parameter) -> Parameter:
    """Return a function's parameter with its row of the table."""
    name = parameter.name
    if name == "settings":
        return parameter
    row = find_row(verb_name, name)
    if row.plan:
        told = plan_option(FIELDS[name])
    else:
        words = row.help
        if row.kinds:
            listed = {one: None for kind in row.kinds.split() for one in formats(kind)}
            words = f"{join_names(list(listed))}."
        more: dict[str, Any] = {"metavar": row.metavar or row.argument or None}
        if row.value:
            value = find_value(row.value)
            spelled = row.names.split(" ")[0] or name
            more["parser"] = functools.partial(_parse, spelled, value.read)
            more["metavar"] = more["metavar"] or value.metavar
        if row.argument:
            told = typer.Argument(help=words, show_default=False, **more)
        else:
            told = typer.Option(*row.names.split(" "), help=words, **more)
    return parameter.replace(annotation=Annotated[parameter.annotation, told])


def _parse(name: str, read: Callable[[str, str], Any], text: Any) -> Any:
    # A default is a value already.
    return read(name, text) if isinstance(text, str) else text


def plan_option(field: Field) -> Any:
    """Return the option of a plan's field."""
    several = "Several: a comma list." if field.name in SEVERAL and not field.typed else ""
    words = " ".join(filter(None, (field.help, field.typed, several)))
    if field.kind is bool:
        names = [f"--{field.option}/--no-{field.option}"]
        return typer.Option(*names, help=words, rich_help_panel=field.group)
    metavar = _NAMED.get(field.name, "NAME" if field.choices else _METAVARS[field.kind])
    names = [_ALSO[field.name]] if field.name in _ALSO else []
    return typer.Option(
        *names,
        f"--{field.option}",
        help=words,
        metavar=metavar,
        autocompletion=offers.find_offer(field),
        rich_help_panel=field.group,
    )


def _plan_parameters() -> list[Parameter]:
    """Return a parameter for each field of a plan, and for the files and help that go with them."""
    found = []
    for field in FIELDS.values():
        kind: Any = list[str] if field.repeats else bool if field.kind is bool else str
        if field.name == "model":
            told = typer.Argument(
                help=field.help,
                show_default=False,
                autocompletion=offers.models,
                metavar="MODEL",
            )
        elif field.option is not None:
            told = plan_option(field)
        else:
            continue
        found.append(_optional(field.name, Annotated[kind | None, told]))
    found.append(_declare("", _optional("plan_file", Path | None)))
    shown = typer.Option(
        "--help-all", help="", hidden=True, is_eager=True, callback=show_all_options
    )
    found.append(_switch("help_all").replace(annotation=Annotated[bool, shown]))
    return found


def _optional(name: str, annotation: Any) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
