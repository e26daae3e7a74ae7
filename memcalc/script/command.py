"""What a command line runs: a script, a module, or a console script that Python wrote."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import msgspec

from memcalc.errors import UsageError

_PYTHON = re.compile(r"python(\d(\.\d+)?)?")
_WITH_VALUE = ("-W", "-X")
_LAUNCHERS = {"torchrun", "deepspeed", "accelerate", "mpirun", "srun", "torch.distributed.run"}


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """What to run, and with which arguments."""

    path: str = ""
    """Of a script; empty: it is a module."""
    module: str = ""
    arguments: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """How people call it."""
        return Path(self.path).name if self.path else self.module


def understand(typed: str, folder: Path | None = None) -> Program:
    """Find the Python program in a command as it is typed.

    Args:
        typed: the command.
        folder: where it is to run; ``None``: here.

    Raises:
        UsageError: there is none, or it starts others.
    """
    try:
        command = shlex.split(typed)
    except ValueError as error:
        raise UsageError(f"{typed!r} is no command: {error}.") from None
    if not command:
        raise UsageError("Nothing to simulate: type memcalc simulate -- python train.py.")
    first, *rest = command
    if Path(first).name in _LAUNCHERS:
        raise _launcher(Path(first).name)
    if _PYTHON.fullmatch(Path(first).name):
        return _python(rest, folder)
    if first.endswith(".py"):
        return _script(first, rest, folder)
    found = shutil.which(first)
    if found is None:
        raise UsageError(
            f"There is no command {first!r}: type memcalc simulate -- python train.py."
        )
    if not _is_python(Path(found)):
        raise UsageError(
            f"{first} is no Python program: name the script it runs, "
            "as in memcalc simulate -- python train.py."
        )
    return Program(path=found, arguments=tuple(rest))


def _python(rest: list[str], folder: Path | None) -> Program:
    while rest and rest[0].startswith("-") and rest[0] not in ("-", "-c", "-m"):
        del rest[: 2 if rest[0] in _WITH_VALUE else 1]
    if len(rest) > 1 and rest[0] == "-m":
        if rest[1] in _LAUNCHERS:
            raise _launcher(rest[1])
        return Program(module=rest[1], arguments=tuple(rest[2:]))
    if not rest or rest[0].startswith("-"):
        raise UsageError("Name a script or a module: memcalc simulate -- python train.py.")
    return _script(rest[0], rest[1:], folder)


def _script(path: str, rest: list[str], folder: Path | None) -> Program:
    if not (folder or Path()).joinpath(path).is_file():
        raise UsageError(f"There is no script {path}.")
    return Program(path=path, arguments=tuple(rest))


def _is_python(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            first = file.readline(256)
            second = file.readline(256)
    except OSError:
        return False
    # Long paths are reached by way of the shell: '''exec' /long/path/python "$0" "$@".
    return first.startswith(b"#!") and (b"python" in first or b"python" in second)


def _launcher(name: str) -> UsageError:
    return UsageError(
        f"{name} starts processes of its own, and one GPU is simulated: "
        "name the script itself, as in memcalc simulate -- python train.py."
    )
