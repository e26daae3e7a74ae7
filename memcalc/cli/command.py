"""The base of memcalc's commands: their parameters, and the headings of their help."""

import contextlib
import functools
import inspect
import re
import sys
from collections.abc import Callable, Collection, Iterable
from inspect import Parameter
from itertools import pairwise
from typing import Annotated, Any, NamedTuple

import typer
from msgspec import Meta
from typer.core import TyperCommand

from memcalc import untrusted_text
from memcalc.cli.app import plainly_read
from memcalc.errors import UsageError
from memcalc.files.offline import stay_offline
from memcalc.records.fields import FIELDS
from memcalc.records.values import Method, plain, typed
from memcalc.units import parse_bytes


class Value(NamedTuple):
    """What an option takes."""

    metavar: str
    read: Callable[[str, str], Any]
    """The value from the option's name and its text, or a ``UsageError``."""


def of(kind: Any) -> Value:
    """A value of a declared type, such as ``Annotated[int, Meta(ge=1, le=8)]``."""
    metavar = {int: "N", float: "X"}.get(plain(kind), "NAME")
    return Value(metavar, lambda name, text: typed(name, kind, text))


def counted(least: int) -> Value:
    """A whole number that is not below this one."""
    return of(Annotated[int, Meta(ge=least, le=1 << 20)])


def _size(name: str, text: str) -> int:
    try:
        size = parse_bytes(text)
    except UsageError as error:
        raise UsageError(f"{name}: {error}") from None
    if not size:
        raise UsageError(f"{name} {text!r} must be more than 0 bytes.")
    return size


def _tokens(name: str, text: str) -> float:
    found = re.fullmatch(r"([0-9.]+) ?([KMBT])", text.upper())
    if found is not None:
        text = f"{found[1]}e{3 * ('KMBT'.index(found[2]) + 1)}"
    return float(typed(name, Annotated[float, Meta(gt=0, le=1e18)], text))


TEXT = Value("TEXT", lambda _, text: text)
SIZE = Value("SIZE", _size)
TOKENS = Value("X", _tokens)
SECONDS = of(Annotated[float, Meta(gt=0, le=1e9)])
METHOD = of(Method)
DEVICE = of(FIELDS["target"].type)


COMMON = (
    *("gpu", "optim", "precision", "batch", "seq", "preset", "lora", "quant", "checkpointing"),
    *("grad_accum", "parallel", "devices"),
)
"""Options of a plan that ``--help`` shows; ``--help-all`` shows the others too."""
_MOST = "Common settings"
ALL = "memcalc.all"


def show_all_options(ctx: typer.Context, wanted: bool) -> None:
    """Print the help with every option, and leave, where that is wanted."""
    if wanted:
        ctx.meta[ALL] = True
        typer.echo(ctx.get_help())
        raise typer.Exit


AS_TYPED = {"ignore_unknown_options": True, "allow_interspersed_args": False}
"""Settings of a verb that takes a command: options behind the command are the command's own."""


_SWITCHES = {
    "--json": "--format json",
    "--md": "--format markdown",
    "--fp32": "--precision fp32",
    **dict.fromkeys(("--bf16", "--bfloat16"), "--precision amp-bf16"),
    **dict.fromkeys(("--fp16", "--float16"), "--precision amp-fp16"),
    "--qlora": "--preset qlora",
}
"""Switches that other tools have, and what is taken for them."""


def _with_switches_spelled_out(words: list[str], options: Collection[str]) -> list[str]:
    """Put our options in place of switches that other tools have."""
    taken: list[str] = []
    for word in words:
        ours = _SWITCHES.get(word, "").split()
        known = bool(ours) and word not in options and ours[0] in options
        taken += ours if known else [word]
        if known and (half := ours[1].removeprefix("amp-")) != ours[1]:
            say(
                f"memcalc: {word} is taken as {' '.join(ours)} (fp32 weights, as the Trainer's "
                f"--{half}); for weights in {half}: --precision {half}"
            )
    return taken


class Command(TyperCommand):
    """A command whose help has headings, and ends with examples."""

    def get_help_option_names(self, ctx: Any) -> list[str]:
        """Both, whichever context asks first: the option is made once."""
        return ["-h", "--help"]

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters, ``--help`` among them."""
        return plainly_read(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read what was typed; an option in the place of another's value is no value."""
        options = {name: one for one in self.get_params(ctx) for name in one.opts}
        if ctx.allow_interspersed_args:
            args = _with_switches_spelled_out(args, options)
        for word, value in pairwise(args if ctx.allow_interspersed_args else ()):
            if word == "--":
                break
            takes = word.startswith("-") and not getattr(options.get(word), "is_flag", True)
            if takes and value.startswith("-") and value in options:
                metavar = options[word].metavar or "TEXT"
                raise UsageError(f"{word} needs a value: type {word} {metavar}.")
        return super().parse_args(ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write what is the verb's own, then the plan's options: by group, or the common ones."""
        groups: dict[str, list[tuple[str, str]]] = {}
        left = 0
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            title = getattr(param, "rich_help_panel", None)
            if title is not None and ALL not in ctx.meta:
                left += param.name not in COMMON
                title, record = _MOST, record if param.name in COMMON else None
            if record is not None:
                if param.param_type_name == "argument":
                    record = param.metavar or "", record[1]
                title = title or f"{param.param_type_name.capitalize()}s"
                groups.setdefault(title, []).append(record)
        for title, records in groups.items():
            if title == _MOST:
                records.append(("--help-all", f"Show {left} more: for rarer settings of a plan."))
            with formatter.section(title):
                formatter.write_dl(records)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write what may be typed."""
        if self.epilog:
            with formatter.section("Examples"):
                for example in self.epilog.splitlines():
                    formatter.write(f"  {example}\n")


def option(*words: str, value: Value | None = None, **more: Any) -> Any:
    """An option, for ``Annotated``: its names as they are typed, and what it is, in a sentence.

    Without a ``value`` it is a switch, or ``more`` says what it is, as ``typer.Option`` takes it.
    """
    *names, told = words
    if value is not None:
        read = value.read

        def parse(text: Any) -> Any:
            # A default is a value already.
            return read(names[0], text) if isinstance(text, str) else text

        more = {"metavar": value.metavar, "parser": parse, **more}
    return typer.Option(*names, help=told, show_default=more.pop("show_default", True), **more)


def file_option(*words: str) -> Any:
    """An option that names a file."""
    return option(*words, metavar="FILE")


def argument(help: str, **more: Any) -> Any:
    """An argument and what it is, for ``Annotated``."""
    return typer.Argument(help=help, show_default=False, **more)


Words = Annotated[
    list[str], argument("The command, after --, with its arguments.", metavar="COMMAND")
]
Steps = Annotated[
    int,
    option(
        "--steps", "Optimizer steps; the last is measured, those before warm up.", value=counted(2)
    ),
]
Timeout = Annotated[float, option("--timeout", "Seconds for one run.", value=SECONDS)]
Depth = Annotated[
    int | None,
    option("--depth", "Shorten module paths to this many names.", value=counted(1)),
]
Top = Annotated[int, option("--top", "Kinds of storage to list.", value=counted(1))]
Remedies = Annotated[bool, option("--remedies/--no-remedies", "Estimate remedies that need less.")]


def verb(
    *examples: str, fetches: bool = False, **more: Any
) -> Callable[[Callable[..., None]], Command]:
    """Make a command of a function; ``fetches``: it may need what ``--offline`` forbids."""

    def made(function: Callable[..., None]) -> Command:
        if fetches:
            function = _with_offline(function)
        single = typer.Typer(add_completion=False, rich_markup_mode=None)
        words = inspect.getdoc(function)
        single.command(cls=Command, help=words, epilog="\n".join(examples), **more)(function)
        command = typer.main.get_command(single)
        assert isinstance(command, Command)
        return command

    return made


def declared(function: Callable[..., None], parameters: Iterable[Parameter]) -> None:
    """Make these the parameters of a function, as typer reads them."""
    named = [one.replace(kind=Parameter.KEYWORD_ONLY) for one in parameters]
    function.__signature__ = inspect.Signature(named)  # type: ignore[attr-defined]
    function.__annotations__ = {one.name: one.annotation for one in named}


def _with_offline(function: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(function)
    def run(offline: bool, **typed: Any) -> None:
        if offline:
            stay_offline()
        function(**typed)

    told = option("--offline", "Fetch nothing (or set HF_HUB_OFFLINE=1).")
    more = Parameter(
        "offline", Parameter.KEYWORD_ONLY, default=False, annotation=Annotated[bool, told]
    )
    declared(run, [*inspect.signature(function, eval_str=True).parameters.values(), more])
    return run


def say(text: str) -> None:
    """One line to a person, on stderr; where that is closed, to nobody."""
    with contextlib.suppress(OSError, ValueError):
        print(untrusted_text.lines(untrusted_text.line(text)), file=sys.stderr, flush=True)
