"""The application: its verbs, in the order help shows them; one is loaded when it is typed."""

import os
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperGroup

from memcalc.errors import UsageError
from memcalc.version import __version__

HELP = {"help_option_names": ["-h", "--help"]}
COMPLETE = "_MEMCALC_COMPLETE"
"""What a shell sets in the environment when it asks what could be typed."""


VERBS = {
    "estimate": "Predict what one training step costs, by component and by phase.",
    "fit": "Find the largest batch and sequence that fit a GPU, and which GPUs and settings fit.",
    "explain": "Show what is alive at the peak, why, and what each remedy really buys.",
    "suggest": "Find the best ways to train a model on a GPU, each one really estimated.",
    "report": "Draw a step's timeline and all figures on one page; of a model, or of a file "
    "memcalc wrote.",
    "measure": "Train for real, one process per run, beside the estimate.",
    "run": "Run any command and report its GPU and main memory; its exit code is passed on.",
    "watch": "Run any command and show its GPU memory live, by process and by step.",
    "simulate": "Run your own training script, unchanged, on a simulated GPU.",
    "compare": "Report how accurate the estimates of measured runs were: median, worst, by group.",
    "check": "Judge the memory budgets of a repository's training runs.",
    "init": "Write a starter memcalc.toml with budgets from today's estimate.",
    "diff": "Show what changed between two answers: by component, phase and module.",
    "show": "Show a saved result again, in any format; or a memory snapshot of a real run.",
    "doctor": "Report what this machine can measure, what is missing and how to fix it.",
    "completion": "Print shell completion for verbs, models, GPUs and optimizers.",
    "list": "List the models, optimizers and GPUs that memcalc knows.",
}
"""The first sentence of each verb's own help: it is shown without importing the command."""
_HOMES = {"compare": ("measure", "compare"), "list": ("lists", "command")}
"""Module and command of a verb, where they are not ``command`` of the module of its name."""


class _Reader(NamedTuple):
    """Reads an option's words by its parser, in place of an adapter of pydantic's.

    The import of pydantic takes as long as a third of an answer from the cache.
    """

    parse: Callable[[Any], Any] | None

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the value of one option or argument."""
        several = param.multiple or param.nargs == -1
        if value is None:
            return () if several else None
        read = self.parse or (lambda word: word)
        return [read(word) for word in value] if several else read(value)


def read_plainly(params: list[Any]) -> list[Any]:
    """Let parsers read the values of parameters, where this release of typer asks pydantic."""
    for param in params:
        if hasattr(param, "get_runtime_param"):
            parse = param.type_descriptor.parameter_info.parser
            param.get_runtime_param = partial(_Reader, parse)
    return params


class PlainGroup(TyperGroup):
    """A group whose own options are read without pydantic."""

    def get_params(self, ctx: Any) -> Any:
        """Return the group's options, read plainly."""
        return read_plainly(super().get_params(ctx))


class _Verbs(PlainGroup):
    """A group that imports a verb's module when the verb is typed, and for nothing else."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        # A mistyped verb is compared with these names.
        self.commands: Any = dict.fromkeys(VERBS)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command of a verb; a model or recipe in its place means ``estimate``."""
        first, *rest = args
        if first == "version":
            _print_version(True)
        if first == "help" and not rest:
            typer.echo(ctx.get_help())
            raise typer.Exit
        if first == "help":
            args = [rest[0], "--help"]
        elif first.endswith(".py"):
            raise UsageError(f"A script is simulated: type memcalc simulate -- python {first}.")
        elif first not in VERBS and _is_model(first):
            args = ["estimate", *args]
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import a verb's module and return its command, or None for an unknown verb."""
        if cmd_name not in VERBS:
            return None
        home, name = _HOMES.get(cmd_name, (cmd_name, "command"))
        return getattr(import_module(f"memcalc.cli.{home}"), name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))


def _is_model(word: str) -> bool:
    """Return True for a bundled model, a hub name with a slash, or an existing file."""
    from memcalc.catalog import models

    return "/" in word or os.path.exists(word) or models.find_shipped_config(word) is not None


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"memcalc {__version__}")
        raise typer.Exit


_app = typer.Typer(
    name="memcalc",
    cls=_Verbs,
    no_args_is_help=True,
    add_completion=False,
    # Panels are drawn by parts of rich that take longer to import than everything else.
    rich_markup_mode=None,
    context_settings=HELP,
)


@_app.callback(help="What will training this model cost in GPU memory?")
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", "-V", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Accept the options that stand before a verb."""


app = typer.main.get_group(_app)
