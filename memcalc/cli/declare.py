"""Makes commands of functions: their parameters are rows of options.toml, and a plan's fields."""

import functools
import inspect
import re
from collections.abc import Callable, Iterable
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from memcalc.cli import offers
from memcalc.cli.app import HELP
from memcalc.cli.command import Command, say, show_all_options
from memcalc.cli.output import Output, formats, join_names, refuse_to_replace
from memcalc.cli.table import find_row, read_table
from memcalc.cli.values import VALUES, Value, find_value
from memcalc.dialects import FILES
from memcalc.errors import UsageError
from memcalc.files.offline import stay_offline
from memcalc.records.fields import COMPARED, FIELDS, Field

_AS_TYPED = {"ignore_unknown_options": True, "allow_interspersed_args": False}
"""Settings of a verb that takes a command: options behind the command are the command's own."""
SEVERAL = ("gpu", *(name for name in COMPARED if name != "gpu"))
"""Settings that take several values with commas between; each makes a plan of its own."""
_OPTION = re.compile(r"--?[A-Za-z]")
_ALSO = {"gpu": "-g", "batch": "--batch-size"}
"""Second names of options, as other tools have them."""
_METAVARS = {int: "N", float: "X", str: "TEXT"}
_NAMED = {"gpu": "GPU", "optim": "NAME", "alloc_conf": "CONF", "torch": "VERSION"}
_NAMED |= {"lora": "r=16", "rank": "N", "transformers": "VERSION", **dict.fromkeys(FILES, "FILE")}


def verb(
    *examples: str, fetches: bool = False, starts_command: bool = False, settings_of: Any = None
) -> Callable[[Callable[..., None]], Command]:
    """Return a decorator that makes a typer command of a function, with options.toml's options.

    Args:
        examples: what may be typed, for the end of its help.
        fetches: it may need what ``--offline`` forbids.
        starts_command: it takes another command, with options of its own.
        settings_of: makes ``settings`` of a plan's options; None: the verb takes no plan.
    """

    def make_command(function: Callable[..., None]) -> Command:
        name = function.__name__
        name = function.__module__.rpartition(".")[2] if name == "command" else name
        asked, writes = _expand_output(function)
        own = {key: _declare_option(name, one) for key, one in asked.items()}
        plan = _make_plan_parameters() if own.pop("settings", None) is not None else []
        added = [_declare_option(name, _make_flag("offline"))] if fetches else []
        shown = [*plan[:1], *own.values(), *plan[1:], *added]
        names = {one.name for one in shown}
        switches = [] if starts_command else [s for s in _read_switches() if s.setting in names]

        @functools.wraps(function)
        def run(**typed: Any) -> None:
            if typed.pop("offline", False):
                stay_offline()
            typed.pop("help_all", None)
            refuse_to_replace(typed.get("output"), typed.values())
            for switch in switches:
                if typed.pop(switch.name):
                    typed[switch.setting] = switch.take()
            if writes:
                typed["output"] = Output(*[typed.pop(one.name) for one in _OUTPUT])
            if plan:
                given = {one.name: typed.pop(one.name) for one in plan if one.name != "help_all"}
                typed["settings"] = settings_of(given)
            function(**typed)

        # The verb's own come first in help.
        _set_parameters(run, [*shown, *(switch.declare() for switch in switches)])
        single = typer.Typer(add_completion=False, rich_markup_mode=None)
        words, epilog = inspect.getdoc(function), "\n".join(examples)
        context = HELP | (_AS_TYPED if starts_command else {})
        single.command(cls=Command, help=words, epilog=epilog, context_settings=context)(run)
        command = typer.main.get_command(single)
        assert isinstance(command, Command)
        return command

    return make_command


class _Switch(NamedTuple):
    """A switch of other tools, such as ``--fp16``, that sets an option of memcalc."""

    typed: str
    setting: str
    value: str

    @property
    def name(self) -> str:
        """The parameter's name."""
        return self.typed.removeprefix("--")

    def declare(self) -> Parameter:
        """Return the switch as a hidden boolean parameter."""
        told = typer.Option(self.typed, hidden=True)
        return _make_flag(self.name).replace(annotation=Annotated[bool, told])

    def take(self) -> str:
        """Return the option's value; print a note if the switch means autocast."""
        if (half := self.value.removeprefix("amp-")) != self.value:
            say(
                f"memcalc: {self.typed} is taken as --{self.setting} {self.value} (fp32 weights, "
                f"as the Trainer's --{half}); for weights in {half}: --precision {half}"
            )
        return self.value


def _read_switches() -> Iterable[_Switch]:
    for typed, ours in read_table().switches.items():
        option, value = ours.split()
        yield _Switch(typed, option.removeprefix("--"), value)


def _parameters(function: Callable[..., None]) -> Iterable[Parameter]:
    return inspect.signature(function, eval_str=True).parameters.values()


def _expand_output(function: Callable[..., None]) -> tuple[dict[str, Parameter], bool]:
    """Return a function's parameters, an ``Output`` as its options, and whether it has one."""
    asked = {one.name: one for one in _parameters(function)}
    writes = "output" in asked and asked["output"].annotation is Output
    if writes:
        del asked["output"]
        asked |= {one.name: one for one in _OUTPUT}
    return asked, writes


def _value_by_type(parameter: Parameter) -> Value:
    """Return how to read a parameter's value by its annotation: as a path, or as text."""
    path = "Path" in str(parameter.annotation)
    return Value("PATH", lambda _, text: Path(text)) if path else VALUES["text"]


def _make_flag(name: str) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, default=False, annotation=bool)


def _make_optional(name: str, annotation: Any) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


_OUTPUT = (
    _make_optional("format", str | None),
    _make_optional("output", Path | None),
    _make_flag("verbose"),
)
"""The options that make an ``Output``, in its order."""


def _set_parameters(function: Callable[..., None], parameters: Iterable[Parameter]) -> None:
    """Replace a function's signature by these parameters, which typer reads."""
    named = [one.replace(kind=Parameter.KEYWORD_ONLY) for one in parameters]
    function.__signature__ = inspect.Signature(named)  # type: ignore[attr-defined]
    function.__annotations__ = {one.name: one.annotation for one in named}


def _declare_option(verb_name: str, parameter: Parameter) -> Parameter:
    """Return a function's parameter annotated with its typer option from options.toml."""
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
        value = find_value(row.value) if row.value else _value_by_type(parameter)
        metavar = row.metavar or row.argument or value.metavar
        names = row.names.split(" ")
        more: dict[str, Any] = {"help": words, "metavar": metavar}
        if parameter.annotation is not bool:
            more["parser"] = functools.partial(_parse_value, names[0] or name, value, metavar)
        told = (
            typer.Option(*names, **more) if names[0] else typer.Argument(show_default=False, **more)
        )
    return parameter.replace(annotation=Annotated[parameter.annotation, told])


def _parse_value(name: str, value: Value, metavar: str, text: Any) -> Any:
    """Parse an option's text; raise UsageError if the text is another option's name."""
    if not isinstance(text, str):
        return text  # A default is a value already.
    if name.startswith("-") and _OPTION.match(text):
        raise UsageError(f"{name} needs a value: type {name} {metavar}.")
    return value.read(name, text)


def plan_option(field: Field) -> Any:
    """Return the typer option of a plan's field."""
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
        parser=functools.partial(_parse_value, f"--{field.option}", VALUES["text"], metavar),
        autocompletion=offers.find_offer(field),
        rich_help_panel=field.group,
    )


def _make_plan_parameters() -> list[Parameter]:
    """Return typer parameters for all fields of a plan, ``--plan`` and ``--help-all``."""
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
        found.append(_make_optional(field.name, Annotated[kind | None, told]))
    found.append(_declare_option("", _make_optional("plan_file", Path | None)))
    shown = typer.Option(
        "--help-all", help="", hidden=True, is_eager=True, callback=show_all_options
    )
    found.append(_make_flag("help_all").replace(annotation=Annotated[bool, shown]))
    return found
