"""The class of memcalc's commands: the parts of their help."""

import contextlib
import sys
from typing import Any

import typer
from typer.core import TyperCommand

from memcalc import untrusted_text
from memcalc.cli.app import read_plainly

COMMON = (
    *("gpu", "optim", "precision", "batch", "seq", "preset", "lora", "quant", "checkpointing"),
    *("grad_accum", "parallel", "devices"),
)
"""Options of a plan that ``--help`` shows; ``--help-all`` shows the others too."""
PAGES = {
    **dict.fromkeys(("estimate", "diff", "suggest"), "questions"),
    **dict.fromkeys(("explain", "report"), "tutorial"),
    **dict.fromkeys(("measure", "compare", "run", "watch", "show", "doctor"), "measure"),
    **dict.fromkeys(("check", "init"), "ci"),
    "fit": "fit",
    "simulate": "your-own-script",
}
"""The page of the docs on each verb."""
_MOST = "Common settings"
ALL = "memcalc.all"


def show_all_options(ctx: typer.Context, wanted: bool) -> None:
    """Print the help with every option and exit, if wanted (``--help-all``)."""
    if wanted:
        ctx.meta[ALL] = True
        typer.echo(ctx.get_help())
        raise typer.Exit


class Command(TyperCommand):
    """A command whose help has headings, and ends with examples."""

    def get_params(self, ctx: Any) -> Any:
        """Return the parameters; our own parsers read their values."""
        return read_plainly(super().get_params(ctx))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the help of a verb's own options, then of a plan's: the common ones or all."""
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
        """Write the examples at the end of the help."""
        if self.epilog:
            with formatter.section("Examples"):
                for example in self.epilog.splitlines():
                    formatter.write(f"  {example}\n")
        page = PAGES.get(ctx.info_name)
        if page is not None:
            formatter.write(f"\nRead more: docs/{page}.md in memcalc's repository.\n")


def say(text: str) -> None:
    """Print one line on stderr; a closed stderr is ignored."""
    with contextlib.suppress(OSError, ValueError):
        print(untrusted_text.lines(untrusted_text.line(text)), file=sys.stderr, flush=True)
