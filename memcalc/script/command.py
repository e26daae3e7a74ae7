"""Finds the program of a command line, a script, a module or a console script; and runs it."""

import contextlib
import os
import re
import runpy
import shlex
import shutil
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from memcalc.errors import UsageError
from memcalc.records.plan import Plan
from memcalc.script import launchers

_WITH_VALUE = ("-W", "-X")
_NO_MATTER = ("-u", "-B", "-q", "-X")
"""Options of Python that change nothing of what is simulated."""


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """What to run, and with which arguments."""

    path: str = ""
    """Of a script; empty: it is a module."""
    module: str = ""
    arguments: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    """Options of Python itself that it was typed with; they are not followed."""
    launcher: str = ""
    """What starts it, one process a GPU, and is told ``arguments``; empty: it is started alone."""
    environment: tuple[tuple[str, str], ...] = ()
    """Variables that stand before it."""

    @property
    def name(self) -> str:
        """How people call it."""
        return self.launcher or (Path(self.path).name if self.path else self.module)


def parse(typed: str, folder: Path | None = None) -> Program:
    """Find the Python program in a command as it is typed.

    Raises:
        UsageError: there is none, or it starts others.
    """
    try:
        command = shlex.split(typed)
    except ValueError as error:
        raise UsageError(f"{typed!r} is no command: {error}.") from None
    given, command = assigned(command)
    if not command:
        raise UsageError("Nothing to simulate: type memcalc simulate -- python train.py.")
    program = _program(command, folder, {**os.environ, **given})
    return msgspec.structs.replace(program, environment=tuple(given.items()))


_NOTEBOOK = ".ipynb"


def _program(command: list[str], folder: Path | None, environment: Mapping[str, str]) -> Program:
    first, *rest = command
    name = Path(first).name
    if name in launchers.NAMES:
        return Program(launcher=launchers.NAMES[name], arguments=tuple(rest))
    if name in launchers.OTHERS:
        raise UsageError(
            f"{name} does not name its number of processes where memcalc can read it: type "
            "memcalc simulate -- torchrun --nproc-per-node 8 train.py."
        )
    if PYTHON.fullmatch(name):
        return _python(rest, folder, environment)
    if first.endswith((".py", _NOTEBOOK)):
        return script(first, rest, folder)
    if first.startswith("-"):
        raise UsageError(
            f"{first} is no option of memcalc simulate. Its options stand before the program, and "
            f"the script's after it: type memcalc simulate -- python train.py {first}."
        )
    said = refusal(command, folder or Path())
    if said:
        raise UsageError(said)
    # An environment that is not activated has its programs beside its Python.
    places = (shutil.which(first), shutil.which(first, path=str(Path(sys.executable).parent)))
    found = next((one for one in places if one is not None and _is_python(Path(one))), None)
    if found is None:
        raise UsageError(refusal_of_starter(command) or _no_program(first, places[0]))
    if name == "swift" and _SWIFT in Path(found).read_text(errors="replace"):
        return _swift(rest, environment)
    return Program(path=found, arguments=tuple(rest))


def _no_program(first: str, found: str | None) -> str:
    if found is None:
        return f"There is no command {first!r}: type memcalc simulate -- python train.py."
    return (
        f"{first} is no Python program: name the script it runs, "
        "as in memcalc simulate -- python train.py."
    )


def _python(rest: list[str], folder: Path | None, environment: Mapping[str, str]) -> Program:
    left_out: list[str] = []
    while rest and rest[0].startswith("-") and rest[0] not in ("-", "-c", "-m"):
        taken = 2 if rest[0] in _WITH_VALUE else 1
        left_out += [" ".join(rest[:taken])] * (rest[0] not in _NO_MATTER)
        del rest[:taken]
    if rest and rest[0] in ("-", "-c"):
        raise UsageError(
            f"python {rest[0]} runs no file: put the code in one, and type memcalc simulate -- "
            "python train.py."
        )
    if len(rest) > 1 and rest[0] == "-m":
        if rest[1] in launchers.NAMES:
            return Program(launcher=launchers.NAMES[rest[1]], arguments=tuple(rest[2:]))
        named = (
            _swift(rest[2:], environment)
            if rest[1] == _SWIFT
            else Program(module=rest[1], arguments=tuple(rest[2:]))
        )
    elif not rest or rest[0].startswith("-"):
        raise UsageError("Name a script or a module: memcalc simulate -- python train.py.")
    else:
        named = script(rest[0], rest[1:], folder)
    return msgspec.structs.replace(named, left_out=tuple(left_out))


def script(path: str, rest: Sequence[str], folder: Path | None = None) -> Program:
    """A script and its arguments.

    Raises:
        UsageError: there is no such file.
    """
    if not os.path.isfile((folder or Path()).joinpath(path)):
        raise UsageError(f"There is no script {path}.")
    if path.endswith(_NOTEBOOK):
        raise UsageError(
            f"{path} is a notebook, not a script: type {_converted(path)}. In a cell, use "
            "memcalc.simulate()."
        )
    return Program(path=path, arguments=tuple(rest))


def _converted(notebook: str) -> str:
    """What to type for a notebook."""
    made = Path(notebook).with_suffix(".py").name
    return f"jupyter nbconvert --to script {notebook}, then memcalc simulate -- python {made}"


def launched(plan: Plan, folder: Path | None = None) -> tuple[Program, launchers.Launch | None]:
    """What the launcher of a plan's command starts; a program that none starts is itself.

    Raises:
        UsageError: the launcher does not take its command line, or there is no such script.
    """
    program = parse(plan.command or "", folder)
    if not program.launcher:
        return program, None
    gpus = plan.devices if plan.gpu is not None else None
    launch = launchers.parse(program.launcher, program.arguments, gpus)
    started = (
        Program(module=launch.script, arguments=launch.words(0))
        if launch.is_module
        else script(launch.script, launch.words(0), folder)
    )
    return msgspec.structs.replace(started, environment=program.environment), launch


def _is_python(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            first = file.readline(256)
            second = file.readline(256)
    except OSError:
        return False
    # Long paths are reached by way of the shell: '''exec' /long/path/python "$0" "$@".
    return first.startswith(b"#!") and (b"python" in first or b"python" in second)


_SWIFT = "swift.cli.main"
"""The module of ms-swift's command; other packages and languages have a ``swift`` too."""
_SEVERAL = ("pt", "sft", "rlhf", "infer")
"""Programs of ms-swift that torchrun starts where the environment says how many."""
_TOLD = ("NPROC_PER_NODE", "MASTER_PORT", "NNODES", "NODE_RANK", "MASTER_ADDR")
"""What ms-swift tells torchrun, which calls its options alike."""


def _swift(words: Sequence[str], environment: Mapping[str, str]) -> Program:
    """The program that ``swift sft ...`` starts, or ``torchrun`` with it.

    Such a command would be simulated, and what it starts would not: the program itself is run.
    Source: swift/cli/main.py, ``cli_main`` (4.6).

    Raises:
        UsageError: no program is named, or its options are in a file.
    """
    if not words or words[0].startswith("-"):
        raise UsageError("Name a command of swift: memcalc simulate -- swift sft --model ....")
    method, rest = words[0].replace("_", "-"), list(words[1:])
    if rest and rest[0].endswith((".json", ".yaml", ".yml")):
        raise UsageError(
            f"swift {method} {rest[0]} makes options of a file: type them, as in "
            f"memcalc simulate -- swift {method} --model ...."
        )
    module = f"swift.cli.{method.replace('-', '_')}"
    if method not in _SEVERAL or not {"NPROC_PER_NODE", "NNODES"} & environment.keys():
        return Program(module=module, arguments=tuple(rest))
    told = [f"--{name.lower()}={environment[name]}" for name in _TOLD if name in environment]
    return Program(launcher="torchrun", arguments=(*told, "-m", module, *rest))


def run(program: Program) -> dict[str, Any]:
    """Run it to its end; returns its variables, or none where it has emptied ``sys.argv``."""
    try:
        if program.path:
            return runpy.run_path(program.path, run_name="__main__")
        return runpy.run_module(program.module, run_name="__main__", alter_sys=True)
    except IndexError as error:
        last = [frame for frame, _ in traceback.walk_tb(error.__traceback__)][-1]
        if sys.argv or last.f_code.co_filename != runpy.run_path.__code__.co_filename:
            raise
        # runpy has put its first argument back, where there is none.
        if error.__context__ is not None:
            raise error.__context__ from None
        return {}


@contextlib.contextmanager
def as_main(program: Program) -> Iterator[None]:
    """Arguments and import path as Python gives them to a program."""
    before = sys.argv, list(sys.path)
    sys.argv = [program.path or program.module, *program.arguments]
    sys.path.insert(0, str(Path(program.path).resolve().parent) if program.path else os.getcwd())
    try:
        yield
    finally:
        sys.argv = before[0]
        sys.path[:] = before[1]


PYTHON = re.compile(r"python(\d(\.\d+)?)?")
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_ENVIRONMENTS = ("uv", "poetry", "pipenv", "pdm", "hatch", "rye", "pixi", "conda", "mamba")
"""Tools that start a program in an environment of their own, after ``run``."""
_TEST_RUNNERS = ("pytest", "py.test")
"""Programs that call the functions of a file, which alone calls none."""
_KERNEL = "ipykernel"
"""In the command that runs a notebook's cells, which waits for them and does not end."""
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
    return _of_shell(name, [first], folder) if first.endswith(".sh") else ""


def refusal_of_starter(words: Sequence[str]) -> str:
    """What to type in place of a command that starts a Python program; empty: it starts none."""
    at = _start(words)
    if at is None:
        return ""
    if Path(words[0]).name in _TEST_RUNNERS:
        return (
            f"{words[0]} is not beside {sys.executable}: install it there, and memcalc in the "
            "environment that has it."
        )
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
    if any(_KERNEL in one for one in commands):
        return _converted(f"NOTEBOOK{_NOTEBOOK}")
    more = f" (and {len(commands) - _SHOWN} more)" if len(commands) > _SHOWN else ""
    return " or ".join(f"memcalc simulate -- {one}" for one in commands[:_SHOWN]) + more


def commands(text: str) -> list[str]:
    """Lines of a shell's script that start Python, as they stand there."""
    found: dict[str, None] = {}
    for line in re.split(r"\n|;|&&|\|\|", text.replace("\\\n", " ")):
        words = line.split()
        at = _start(words)
        if at is not None and all(_ASSIGNED.fullmatch(word) for word in words[:at]):
            found[" ".join(word for word in words if word not in _GIVEN_ON)] = None
    return list(found)


def _start(words: Sequence[str]) -> int | None:
    """Where among words a Python program begins."""
    for at, word in enumerate(words):
        name = Path(word).name
        if PYTHON.fullmatch(name) or name in launchers.NAMES or name.endswith(".py"):
            return at
    return None
