"""``memcalc completion``."""

import typer

from memcalc.cli.declare import verb

_INSIDE = "zstyle ':completion:*:*:memcalc:*' matcher 'm:{a-zA-Z}={A-Za-z} l:|=* r:|=*'"
"""zsh leaves out what does not begin with what was typed, unless it is told otherwise."""


@verb("memcalc completion bash")
def command(shell: str) -> None:
    """Print shell completion for verbs, models, GPUs and optimizers.

    Add its output to the shell's start, such as eval "$(memcalc completion bash)" in ~/.bashrc.
    """
    answer(f"source_{shell}")
    if shell == "zsh":
        typer.echo(_INSIDE)


def answer(instruction: str) -> int:
    """Print completions for a shell's request, or its script; return the exit code."""
    from typer import completion

    from memcalc.cli.app import COMPLETE, app

    completion.completion_init()  # type: ignore[attr-defined]
    return completion.shell_complete(app, {}, "memcalc", COMPLETE, instruction)
