"""``memcalc completion``."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from memcalc.cli.command import argument, verb

_SHELLS = ("bash", "zsh", "fish")


@verb
@argument("shell", "bash, zsh or fish.", type=click.Choice(_SHELLS))
def command(shell: str) -> None:
    """Print shell completion for verbs, models, GPUs and optimizers.

    Add its output to the shell's start, such as eval "$(memcalc completion bash)" in ~/.bashrc.
    """
    from memcalc.cli.app import COMPLETE, app

    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(app, {}, "memcalc", COMPLETE).source())


def answer(instruction: str) -> int:
    """Answer a shell's completion request; return the exit code."""
    from click.shell_completion import shell_complete

    from memcalc.cli.app import COMPLETE, app

    return shell_complete(app, {}, "memcalc", COMPLETE, instruction)
