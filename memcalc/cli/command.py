"""The class of memcalc's commands: what is typed in other tools' words, and the parts of help."""

import contextlib
import sys
from collections.abc import Collection
from itertools import pairwise
from typing import Any

import typer
from typer.core import TyperCommand

from memcalc import untrusted_text
from memcalc.cli.app import read_without_pydantic
from memcalc.cli.table import read_table
from memcalc.errors import UsageError

COMMON = (
    *("gpu", "optim", "precision", "batch", "seq", "preset", "lora", "quant", "checkpointing"),
    *("grad_accum", "parallel", "devices"),
)
"""Options of a plan that ``--help`` shows; ``--help-all`` shows the others too."""
_MOST = "Common settings"
ALL = "memcalc.all"


def show_all_options(ctx: typer.Context, wanted: bool) -> None:
    """Print the help with every option and leave, if that is wanted."""
    if wanted:
        ctx.meta[ALL] = True
        typer.echo(ctx.get_help())
        raise typer.Exit


def _replace_switches(words: list[str], options: Collection[str]) -> list[str]:
    """Put our options in place of switches that other tools have."""
    taken: list[str] = []
    for word in words:
        ours = read_table().switches.get(word, "").split()
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
        """Return both names; the option is made once, for all contexts."""
        return ["-h", "--help"]

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters, ``--help`` among them."""
        return read_without_pydantic(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read what was typed; an option in the place of another's value is no value."""
        options = {name: one for one in self.get_params(ctx) for name in one.opts}
        if ctx.allow_interspersed_args:
            args = _replace_switches(args, options)
        for word, value in pairwise(args if ctx.allow_interspersed_args else ()):
            if word == "--":
                break
            takes = word.startswith("-") and not getattr(options.get(word), "is_flag", True)
            if takes and value.startswith("-") and value in options:
                metavar = options[word].metavar or "TEXT"
                raise UsageError(f"{word} needs a value: type {word} {metavar}.")
        return super().parse_args(ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the verb's own options, then the plan's: by group, or the common ones."""
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
        """Write examples."""
        if self.epilog:
            with formatter.section("Examples"):
                for example in self.epilog.splitlines():
                    formatter.write(f"  {example}\n")


def say(text: str) -> None:
    """Print one line on stderr; a closed stderr is ignored."""
    with contextlib.suppress(OSError, ValueError):
        print(untrusted_text.lines(untrusted_text.line(text)), file=sys.stderr, flush=True)
