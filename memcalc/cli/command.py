"""The base of memcalc's commands: help for arguments, warnings as lines."""

from __future__ import annotations

import contextlib
import functools
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from memcalc import untrusted_text
from memcalc.cli.groups import EXAMPLES, GROUPS, OTHERS

FILE: Any = click.Path(path_type=Path)
"""The type of an option or argument that names a file."""


class Argument(click.Argument):
    """An argument with a help text of its own."""

    def __init__(self, names: Sequence[str], *, explained: str, **more: Any) -> None:
        super().__init__(names, **more)
        self.explained = explained


class Command(click.Command):
    """A command that explains its arguments before its options, and ends with examples."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the arguments, then what is the verb's own, then the plan's by group."""
        known = [param for param in self.params if isinstance(param, Argument)]
        if known:
            with formatter.section("Arguments"):
                formatter.write_dl([(one.make_metavar(ctx), one.explained) for one in known])
        rest = [param for param in self.get_params(ctx) if not isinstance(param, Argument)]
        groups: dict[str, list[click.Parameter]] = {}
        for param in rest:
            groups.setdefault(getattr(param, "group", "Options"), []).append(param)
        order = [*GROUPS, OTHERS, "Options"]
        for title in sorted(groups, key=order.index):
            records = [param.get_help_record(ctx) for param in groups[title]]
            with formatter.section(title):
                formatter.write_dl([record for record in records if record is not None])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write what may be typed."""
        examples = EXAMPLES.get(ctx.info_name or "")
        if examples:
            with formatter.section("Examples"):
                for example in examples:
                    formatter.write(f"  {example}\n")


def argument(name: str, explained: str, **more: Any) -> Callable[[Any], Any]:
    """Declare an argument of the function below, as ``click.option`` declares an option."""
    return click.argument(name, cls=Argument, explained=explained, **more)


def option(*names: str, **more: Any) -> Callable[[Any], Any]:
    """Declare an option of the function below; its default is shown where it has one."""
    return click.option(*names, **{"show_default": True, **more})


def no_cache(what: str) -> Callable[[Any], Any]:
    """Declare ``--no-cache`` of the function below, which is told ``use_cache``."""
    return click.option(
        "--no-cache",
        "use_cache",
        is_flag=True,
        flag_value=False,
        default=True,
        help=f"Neither read nor keep {what} on disk.",
    )


def verb(
    function: Callable[..., None], shared: Sequence[click.Parameter] = (), **more: Any
) -> Command:
    """Make a command of a function; its help is the docstring.

    Args:
        function: with ``argument`` and ``option`` declared on it.
        shared: parameters that come before those.
        **more: of ``click.Command``.
    """
    own = list(reversed(getattr(function, "__click_params__", [])))
    return Command(
        name=None,
        callback=_warning_in_lines(function),
        params=[*shared, *own],
        help=function.__doc__,
        **more,
    )


def _warning_in_lines(function: Callable[..., None]) -> Callable[..., None]:
    """Turn warnings into lines on stderr; errors are told by ``memcalc.__main__``."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("always", UserWarning)
            warnings.showwarning = _show_warning
            function(*args, **kwargs)

    return run


def exit_with(code: int) -> click.exceptions.Exit:
    """What to raise to end the command with this exit code."""
    return click.exceptions.Exit(code)


def _show_warning(message: Any, *rest: Any, **more: Any) -> None:
    say(f"warning: {message}")


def say(text: str) -> None:
    """One line on stderr, if that is open."""
    with contextlib.suppress(OSError, ValueError):
        print(untrusted_text.lines(untrusted_text.line(text)), file=sys.stderr, flush=True)
