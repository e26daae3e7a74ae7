"""Shell completion of verbs, models, optimizers and GPUs, and the verb that prints it."""

from collections.abc import Callable, Iterable
from typing import Annotated, Literal

import typer

from memcalc.cli.command import argument, of, verb
from memcalc.records.fields import Field

Offer = Callable[[str], list[str]]


class _Offered(str):
    """A name that holds what was typed anywhere: typer leaves out what does not begin with it."""

    __slots__ = ()

    def startswith(self, *_: object) -> bool:
        return True


def models(incomplete: str) -> list[str]:
    """Names offers the bundled models."""
    from memcalc.catalog import models as catalog

    return _matching(catalog.bundled(), incomplete)


def gpus(incomplete: str) -> list[str]:
    """Names offers all GPUs, as they are typed without quotes."""
    from memcalc.catalog import gpus as catalog

    return _matching([gpu.name.replace(" ", "").lower() for gpu in catalog.table()], incomplete)


def optimizers(incomplete: str) -> list[str]:
    """Names offers all optimizers; offers a list, offers its last."""
    from memcalc import registry

    *first, last = incomplete.split(",")
    before = "".join(f"{name}," for name in first)
    return [_Offered(before + name) for name in _matching((r.name for r in registry.rows()), last)]


def offers(field: Field) -> Offer | None:
    """What completes an option offers a plan; ``None``: nothing can."""
    if field.name in _BY_NAME:
        return _BY_NAME[field.name]
    if not field.choices:
        return None

    def choices(incomplete: str) -> list[str]:
        return _matching(field.choices, incomplete)

    return choices


_BY_NAME = {"gpu": gpus, "optim": optimizers}


def _matching(names: Iterable[str], incomplete: str) -> list[str]:
    """Names that begin with what was typed; where none does, those that have it inside."""
    begun = incomplete.lower()
    names = list(names)
    beginning = [name for name in names if name.lower().startswith(begun)]
    return [_Offered(name) for name in beginning or names if begun in name.lower()]


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
