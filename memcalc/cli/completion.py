"""``memcalc completion``, and what a shell is told that asks."""

from typing import Annotated, Literal

import typer

from memcalc.cli.command import argument, verb
from memcalc.cli.values import of

_SHELL = of(Literal["bash", "zsh", "fish"])
_INSIDE = "zstyle ':completion:*:*:memcalc:*' matcher 'm:{a-zA-Z}={A-Za-z} l:|=* r:|=*'"
"""zsh leaves out what does not begin with what was typed, unless it is told otherwise."""


@verb("memcalc completion bash")
def command(
    shell: Annotated[
        str,
        argument(
            "bash, zsh or fish.", metavar="SHELL", parser=lambda text: _SHELL.read("shell", text)
        ),
    ],
) -> None:
    """Print shell completion for verbs, models, GPUs and optimizers.

    Add its output to the shell's start, such as eval "$(memcalc completion bash)" in ~/.bashrc.
    """
    answer(f"source_{shell}")
    if shell == "zsh":
        typer.echo(_INSIDE)


def answer(instruction: str) -> int:
    """Answer a shell's completion request; return the exit code."""
    from typer import completion

    from memcalc.cli.app import COMPLETE, app

    completion.completion_init()  # type: ignore[attr-defined]
    return completion.shell_complete(app, {}, "memcalc", COMPLETE, instruction)
