"""Command prefixes: environment variables, and programs that start others."""

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

    Returns:
        Empty: it is neither.
    """
    first, *rest = words
    name = Path(first).name
    if name in _ENVIRONMENTS and "run" in rest:
        at = _start(words)
        program = words[at:] if at is not None else ["python", "train.py"]
        before = words[: at if at is not None else 2 + rest.index("run")]
        return (
            f"{name} run starts its program in another environment: type "
            f"{shlex.join(before)} memcalc simulate -- {shlex.join(program)}."
        )
    if name in _SHELLS:
        return _of_shell(name, rest, folder)
    if first.endswith(".sh"):
        return _of_shell(name, [first], folder)
    return ""


def refusal_of_starter(words: Sequence[str]) -> str:
    """What to type in place of a command that starts a Python program; empty: it starts none."""
    at = _start(words)
    if at is None:
        return ""
    return (
        f"{Path(words[0]).name} starts another program: leave it out, as in "
        f"memcalc simulate -- {shlex.join(words[at:])}."
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
    return f"{name} runs a shell's commands, which are not followed: type {to_type(found)}."


def to_type(commands: Sequence[str]) -> str:
    """How each of the first ones is simulated, and how many more there are."""
    more = f" (and {len(commands) - _SHOWN} more)" if len(commands) > _SHOWN else ""
    return " or ".join(f"memcalc simulate -- {one}" for one in commands[:_SHOWN]) + more


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


def _start(words: Sequence[str]) -> int | None:
    """Where among words a Python program begins."""
    for at, word in enumerate(words):
        name = Path(word).name
        if PYTHON.fullmatch(name) or name in launchers.NAMES or name.endswith(".py"):
            return at
    return None
