"""What is typed before a program: variables of its environment, and programs that start others."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from memcalc.errors import UsageError
from memcalc.script import launchers

PYTHON = re.compile(r"python(\d(\.\d+)?)?")
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_ENVIRONMENTS = ("uv", "poetry", "pipenv", "pdm", "hatch", "rye", "pixi", "conda", "mamba")
"""Tools that start a program in an environment of their own, after ``run``."""
_SHELLS = ("sh", "bash", "zsh", "dash", "ksh")
_GIVEN_ON = ('"$@"', "$@", '"$*"', "$*")
"""What hands the arguments of a shell's script on."""
_SHOWN = 3
"""Commands of a shell's script that are named."""


def assigned(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Variables that stand before a program, with or without ``env``, and the rest.

    Raises:
        UsageError: ``env`` is told more than variables.
    """
    rest, given = list(words), {}
    by_env = Path(rest[0]).name == "env" if rest else False
    if by_env:
        del rest[0]
    while rest and (found := _ASSIGNED.fullmatch(rest[0])):
        given[found[1]] = found[2]
        del rest[0]
    if by_env and rest and rest[0].startswith("-"):
        raise UsageError(
            f"env {rest[0]} is not followed: type the variables alone, as in "
            "memcalc simulate -- NAME=value python train.py."
        )
    return given, rest


def refusal(words: Sequence[str], folder: Path) -> str:
    """What to type in place of a shell's commands, or of those that start the program elsewhere.

    Args:
        words: the command.
        folder: where it would run.

    Returns:
        Empty: it is neither.
    """
    first, *rest = words
    name = Path(first).name
    if name in _ENVIRONMENTS and "run" in rest:
        return (
            f"{name} run starts its program in another environment: type "
            f"{shlex.join(_before_program(words))} memcalc simulate -- "
            f"{shlex.join(_program(rest) or ['python', 'train.py'])}."
        )
    if name in _SHELLS:
        return _of_shell(name, rest, folder)
    if first.endswith(".sh"):
        return _of_shell(name, [first], folder)
    return ""


def refusal_of_starter(words: Sequence[str]) -> str:
    """What to type in place of a command that starts a Python program; empty: it starts none."""
    first, *rest = words
    program = _program(rest)
    if not program:
        return ""
    return (
        f"{Path(first).name} starts another program: leave it out, as in "
        f"memcalc simulate -- {shlex.join(program)}."
    )


def _of_shell(name: str, rest: Sequence[str], folder: Path) -> str:
    """Which command of a shell to simulate: its script is read, never run."""
    if "-c" in rest[:-1]:
        text = rest[rest.index("-c") + 1]
    else:
        path = next((word for word in rest if not word.startswith("-")), "")
        try:
            text = (folder / path).read_text(errors="replace")
        except OSError:
            return f"There is no script {path}." if path else ""
    found = commands(text)
    if not found:
        return (
            f"{name} runs a shell's commands, which are not followed: type the one that trains, "
            "as in memcalc simulate -- python train.py."
        )
    more = f" (and {len(found) - _SHOWN} more)" if len(found) > _SHOWN else ""
    shown = " or ".join(f"memcalc simulate -- {one}" for one in found[:_SHOWN])
    return f"{name} runs a shell's commands, which are not followed: type {shown}{more}."


def commands(text: str) -> list[str]:
    """Lines of a shell's script that start Python, as they stand there."""
    found: dict[str, None] = {}
    for line in re.split(r"\n|;|&&|\|\|", text.replace("\\\n", " ")):
        words = line.split()
        at = _start(words)
        before = words[:at]
        if at is not None and all(_ASSIGNED.fullmatch(word) for word in before):
            found[" ".join(word for word in words if word not in _GIVEN_ON)] = None
    return list(found)


def _program(words: Sequence[str]) -> list[str]:
    """The program among words, with what is told to it."""
    at = _start(words)
    return [] if at is None else list(words[at:])


def _before_program(words: Sequence[str]) -> list[str]:
    at = _start(words)
    return list(words if at is None else words[:at])


def _start(words: Sequence[str]) -> int | None:
    for at, word in enumerate(words):
        name = Path(word).name
        if PYTHON.fullmatch(name) or name in launchers.NAMES or name.endswith(".py"):
            return at
    return None
