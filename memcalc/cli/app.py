"""The application: its verbs, in the order help shows them; one is loaded when it is typed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from importlib import import_module
from typing import Any, NamedTuple, cast

import click

from memcalc.version import __version__


def _version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        click.echo(f"memcalc {__version__}")
        ctx.exit()


COMPLETE = "_MEMCALC_COMPLETE"
"""What a shell sets in the environment when it asks what could be typed."""


class Verb(NamedTuple):
    """Where a verb is defined, and what it does in one sentence."""

    home: str
    help: str
    """The first sentence of the command's own help: it is shown without importing the command."""
    name: str = "command"
    """Of the command in its module."""


VERBS = {
    "estimate": Verb(
        "estimate", "Predict what one training step costs, by component and by phase."
    ),
    "fit": Verb(
        "fit",
        "Find the largest batch and sequence that fit a GPU, and which GPUs and settings fit.",
    ),
    "explain": Verb(
        "explain", "Show what is alive at the peak, why, and what each remedy really buys."
    ),
    "suggest": Verb(
        "suggest", "Find the best ways to train a model on a GPU, each one really estimated."
    ),
    "report": Verb(
        "report",
        "Draw a step's timeline and all figures on one page; of a model, or of a file memcalc "
        "wrote.",
    ),
    "measure": Verb("measure", "Train for real, one process per run, beside the estimate."),
    "run": Verb(
        "run",
        "Run any command and report its GPU and main memory; its exit code is passed on.",
    ),
    "simulate": Verb(
        "simulate",
        "Run your own training script, unchanged, on a simulated GPU.",
    ),
    "compare": Verb(
        "measure",
        "Report how accurate the estimates of measured runs were: median, worst, by group.",
        name="compare",
    ),
    "check": Verb("check", "Judge the memory budgets of a repository's training runs."),
    "init": Verb("init", "Write a starter memcalc.toml with budgets from today's estimate."),
    "diff": Verb("diff", "Show what changed between two answers: by component, phase and module."),
    "show": Verb(
        "show",
        "Show a saved result again, in any format; or a memory snapshot of a real run.",
    ),
    "doctor": Verb(
        "doctor", "Report what this machine can measure, what is missing and how to fix it."
    ),
    "completion": Verb(
        "completion", "Print shell completion for verbs, models, GPUs and optimizers."
    ),
    "list": Verb("lists", "List the models, optimizers and GPUs that memcalc knows."),
}


class _Verbs(Mapping[str, click.Command]):
    """The commands by name; looking one up imports its module."""

    def __getitem__(self, name: str) -> click.Command:
        verb = VERBS[name]
        command: click.Command = getattr(import_module(f"memcalc.cli.{verb.home}"), verb.name)
        return command

    def __iter__(self) -> Iterator[str]:
        return iter(VERBS)

    def __len__(self) -> int:
        return len(VERBS)


class _Group(click.Group):
    """A group that imports a verb's module when the verb is typed, and for nothing else."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = cast("MutableMapping[str, click.Command]", _Verbs())

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, verb.help) for name, verb in VERBS.items()])


app = _Group(
    name="memcalc",
    help="What will training this model cost in GPU memory?",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    params=[
        click.Option(
            ["--version", "-V"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_version,
            help="Print the version.",
        )
    ],
)
