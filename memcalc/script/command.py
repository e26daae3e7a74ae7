"""Finds the program of a command line, a script, a module or a console script; and runs it."""

import contextlib
import json
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

from memcalc.dialects.recipe import read_table
from memcalc.errors import UsageError
from memcalc.records.plan import Plan
from memcalc.script import launchers

PYTHON = re.compile(r"python(\d(\.\d+)?)?")
_WITH_VALUE = ("-W", "-X")
_WITHOUT_EFFECT = ("-u", "-B", "-q", "-X")
"""Options of Python that change nothing in a simulation."""
_NOTEBOOK = ".ipynb"
_KERNEL = "ipykernel"
"""In the command that runs a notebook's cells, which waits for them and does not end."""
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_ENVIRONMENTS = ("uv", "poetry", "pipenv", "pdm", "hatch", "rye", "pixi", "conda", "mamba")
"""Tools that start a program in an environment of their own, after ``run``."""
SERVER = "vllm"
"""Program that starts a serving engine."""
_TEST_RUNNERS = ("pytest", "py.test")
"""Programs that call the functions of a file, which alone calls none."""
_SHELLS = ("sh", "bash", "zsh", "dash", "ksh")
_ALL_ARGUMENTS = ('"$@"', "$@", '"$*"', "$*")
"""Words of a shell's script that pass its own arguments to a program."""
_SHOWN = 3
"""Commands of a shell's script that a message names."""
_SWIFT = "swift.cli.main"
"""The module of ms-swift's command; other packages and languages have a ``swift`` too."""
_SEVERAL = ("pt", "sft", "rlhf", "infer")
"""Programs of ms-swift that torchrun starts where the environment says how many."""
_TORCHRUN_VARIABLES = ("NPROC_PER_NODE", "MASTER_PORT", "NNODES", "NODE_RANK", "MASTER_ADDR")
"""Variables that ms-swift passes to torchrun, as options of the same names."""


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """A Python program with its arguments."""

    path: str = ""
    """The path of a script; empty: it is a module."""
    module: str = ""
    arguments: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    """Options of Python in the command that the simulation leaves out."""
    launcher: str = ""
    """A launcher that starts it, one process a GPU, and reads ``arguments``; empty: none does."""
    environment: tuple[tuple[str, str], ...] = ()
    """Variables that stand before it."""

    @property
    def name(self) -> str:
        """The name by which people call it."""
        return self.launcher or (Path(self.path).name if self.path else self.module)


def parse(typed: str, folder: Path | None = None, python: str | None = None) -> Program:
    """Return the Python program of a typed command.

    Args:
        typed: the command.
        folder: where it is run; None: here.
        python: the Python that runs it, whose console scripts come first; None: this one.

    Raises:
        UsageError: it is no Python program, or starts others.
    """
    try:
        command = shlex.split(typed)
    except ValueError as error:
        raise UsageError(f"{typed!r} is no command: {error}.") from None
    given, command = split_assignments(command)
    if not command:
        raise UsageError("Nothing to simulate: type memcalc simulate -- python train.py.")
    python = python or sys.executable
    scripts = Path(shutil.which(python) or python).absolute().parent
    program = _find_program(command, folder or Path(), scripts, {**os.environ, **given})
    found = {**dict(program.environment), **given}
    return msgspec.structs.replace(program, environment=tuple(found.items()))


def _find_program(
    command: list[str], folder: Path, scripts: Path, environment: Mapping[str, str]
) -> Program:
    first, *rest = command
    name = Path(first).name
    if name in launchers.NAMES:
        return Program(launcher=launchers.NAMES[name], arguments=tuple(rest))
    if PYTHON.fullmatch(name):
        return _parse_python_words(rest, folder, environment)
    if first.endswith((".py", _NOTEBOOK)):
        return find_script(first, rest, folder)
    if refusal := _explain_refusal(command, folder):
        raise UsageError(refusal)
    # An environment that is not activated has its programs beside its Python.
    places = (shutil.which(first, path=str(scripts)), shutil.which(first))
    found = next((one for one in places if one is not None and _is_python(Path(one))), None)
    if found is None:
        raise UsageError(_explain_unknown_command(command, exists=any(places)))
    if name == "swift" and _SWIFT in Path(found).read_text(errors="replace"):
        return _find_swift_program(rest, environment)
    return Program(path=found, arguments=tuple(rest))


def _parse_python_words(words: list[str], folder: Path, environment: Mapping[str, str]) -> Program:
    """Return the program in the words that follow ``python``."""
    left_out: list[str] = []
    while words and words[0].startswith("-") and words[0] not in ("-", "-c", "-m"):
        taken = 2 if words[0] in _WITH_VALUE else 1
        left_out += [" ".join(words[:taken])] * (words[0] not in _WITHOUT_EFFECT)
        del words[:taken]
    first, *rest = words or [""]
    if first in ("-", "-c"):
        raise UsageError(
            f"python {first} runs no file: put the code in one, and type memcalc simulate -- "
            "python train.py."
        )
    if first == "-m" and rest:
        if rest[0] in launchers.NAMES:
            return Program(launcher=launchers.NAMES[rest[0]], arguments=tuple(rest[1:]))
        if rest[0] == _SWIFT:
            program = _find_swift_program(rest[1:], environment)
        else:
            program = Program(module=rest[0], arguments=tuple(rest[1:]))
    elif not first or first.startswith("-"):
        raise UsageError("Name a script or a module: memcalc simulate -- python train.py.")
    else:
        program = find_script(first, rest, folder)
    return msgspec.structs.replace(program, left_out=tuple(left_out))


def find_script(path: str, rest: Sequence[str], folder: Path) -> Program:
    """Return the program of a script and its arguments.

    Raises:
        UsageError: there is no such file.
    """
    if not os.path.isfile(folder / path):
        raise UsageError(f"There is no script {path}.")
    if path.endswith(_NOTEBOOK):
        raise UsageError(
            f"{path} is a notebook, not a script: type {_convert_notebook(path)}. In a cell, use "
            "memcalc.simulate()."
        )
    return Program(path=path, arguments=tuple(rest))


def _convert_notebook(path: str) -> str:
    """Return the command that makes a notebook a script and simulates it."""
    made = Path(path).with_suffix(".py").name
    return f"jupyter nbconvert --to script {path}, then memcalc simulate -- python {made}"


def find_launched(
    plan: Plan, folder: Path | None = None
) -> tuple[Program, launchers.Launch | None]:
    """Return the program that a plan's command starts, and how its launcher does.

    Raises:
        UsageError: the launcher does not take its command line, or there is no such script.
    """
    program = parse(plan.command or "", folder, plan.python)
    if not program.launcher:
        return program, None
    launch = launchers.parse(program.launcher, program.arguments, plan)
    started = (
        Program(module=launch.script, arguments=launch.words(0))
        if launch.is_module
        else find_script(launch.script, launch.words(0), folder or Path())
    )
    return msgspec.structs.replace(started, environment=program.environment), launch


def _is_python(path: Path) -> bool:
    """Return True if a file's first lines start Python, as a console script's do."""
    try:
        with path.open("rb") as file:
            first, second = file.readline(256), file.readline(256)
    except OSError:
        return False
    # Long paths are reached by way of the shell: '''exec' /long/path/python "$0" "$@".
    return first.startswith(b"#!") and (b"python" in first or b"python" in second)


def _find_swift_program(words: Sequence[str], environment: Mapping[str, str]) -> Program:
    """Return the program that ``swift sft ...`` starts, or ``torchrun`` with it.

    The command itself only starts it in another process.
    Source: swift/cli/main.py, ``cli_main`` (4.6).

    Raises:
        UsageError: no program is named, or the file of its options cannot be read.
    """
    if not words or words[0].startswith("-"):
        raise UsageError("Name a command of swift: memcalc simulate -- swift sft --model ....")
    method, rest = words[0].replace("_", "-"), list(words[1:])
    told: dict[str, str] = {}
    if rest and rest[0].endswith((".json", ".yaml", ".yml")):
        data = read_table(Path(rest[0]))
        variables = data.pop("ENV", None) or {}
        told = {str(key): str(one) for key, one in variables.items() if key not in environment}
        rest[:1] = [word for key, value in data.items() for word in (f"--{key}", *_words(value))]
    program = _start_swift(method, rest, {**environment, **told})
    return msgspec.structs.replace(program, environment=tuple(told.items()))


def _words(value: Any) -> list[str]:
    """Return a value of an options file as the words that ms-swift makes of it."""
    if isinstance(value, list):
        return [str(one) for one in value]
    return [json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else str(value)]


def _start_swift(method: str, rest: list[str], environment: Mapping[str, str]) -> Program:
    """Return the program of a command of ms-swift, or ``torchrun`` with it."""
    module = f"swift.cli.{method.replace('-', '_')}"
    if method not in _SEVERAL or not {"NPROC_PER_NODE", "NNODES"} & environment.keys():
        return Program(module=module, arguments=tuple(rest))
    given = {name: environment[name] for name in _TORCHRUN_VARIABLES if name in environment}
    options = [f"--{name.lower()}={value}" for name, value in given.items()]
    return Program(launcher="torchrun", arguments=(*options, "-m", module, *rest))


def run(program: Program) -> dict[str, Any]:
    """Run a program to its end in this process; return its global variables."""
    try:
        if program.path:
            return runpy.run_path(program.path, run_name="__main__")
        return runpy.run_module(program.module, run_name="__main__", alter_sys=True)
    except Exception as error:
        *_, (last, _) = traceback.walk_tb(error.__traceback__)
        code = last.f_code
        if (code.co_filename, code.co_name) != (runpy.run_path.__code__.co_filename, "__exit__"):
            raise
        if error.__context__ is not None:
            raise error.__context__ from None
        return {}


@contextlib.contextmanager
def as_main(program: Program) -> Iterator[None]:
    """Set sys.argv and sys.path as Python does for a program, and restore them afterwards."""
    before = sys.argv, sys.path, list(sys.path)
    sys.argv = [program.path or program.module, *program.arguments]
    sys.path.insert(0, str(Path(program.path).resolve().parent) if program.path else os.getcwd())
    try:
        yield
    finally:
        sys.argv, sys.path, sys.path[:] = before


def split_assignments(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Split ``NAME=value`` words before a program, also after ``env``, from the others.

    Raises:
        UsageError: ``env`` has options.
    """
    rest, given = list(words), {}
    by_env = Path(rest[0]).name == "env" if rest else False
    if by_env:
        del rest[0]
    while rest and (found := _ASSIGNMENT.fullmatch(rest[0])):
        given[found[1]] = found[2]
        del rest[0]
    if by_env and rest and rest[0].startswith("-"):
        raise UsageError(
            f"env {rest[0]} is not followed: type the variables alone, as in "
            "memcalc simulate -- NAME=value python train.py."
        )
    return given, rest


def _explain_refusal(words: Sequence[str], folder: Path) -> str:
    """Return why a command such as mpirun is not simulated, with what to type; or empty."""
    first, *rest = words
    name = Path(first).name
    if name in launchers.OTHERS:
        return (
            f"{name} does not name its number of processes where memcalc can read it: type "
            "memcalc simulate -- torchrun --nproc-per-node 8 train.py."
        )
    if first.startswith("-"):
        return (
            f"{first} is no option of memcalc simulate. Its options stand before the program, and "
            f"the script's after it: type memcalc simulate -- python train.py {first}."
        )
    if name in _ENVIRONMENTS and "run" in rest:
        at = _find_start(words)
        program = words[at:] if at is not None else ["python", "train.py"]
        before = words[: at if at is not None else 2 + rest.index("run")]
        return (
            f"{name} run starts its program in another environment: type "
            f"{shlex.join(before)} memcalc simulate -- {shlex.join(program)}."
        )
    if name not in _SHELLS and not first.endswith(".sh"):
        return ""
    words = rest if name in _SHELLS else [first]
    if "-c" in words[:-1]:
        text = words[words.index("-c") + 1]
    else:
        path = next((word for word in words if not word.startswith("-")), "")
        try:
            text = (folder / path).read_text(errors="replace")
        except OSError:
            return f"There is no script {path}." if path else ""
    found = find_commands(text)
    told = to_type(found) or "the one that trains, as in memcalc simulate -- python train.py"
    return f"{name} runs a shell's commands, which are not followed: type {told}."


def _explain_unknown_command(words: Sequence[str], *, exists: bool) -> str:
    """Return why a command that is no Python program is refused, with what to type."""
    at, name = _find_start(words), Path(words[0]).name
    if at is not None and name in _TEST_RUNNERS:
        return (
            f"{words[0]} is not beside {sys.executable}: install it there, and memcalc in the "
            "environment that has it."
        )
    if at is not None:
        return (
            f"{name} starts another program: leave it out, as in "
            f"memcalc simulate -- {shlex.join(words[at:])}."
        )
    if not exists:
        return f"There is no command {words[0]!r}: type memcalc simulate -- python train.py."
    return (
        f"{words[0]} is no Python program: name the script it runs, "
        "as in memcalc simulate -- python train.py."
    )


def to_type(commands: Sequence[str]) -> str:
    """Return ``memcalc simulate -- ...`` for each of the first three commands, as one hint."""
    if any(_KERNEL in one for one in commands):
        return _convert_notebook(f"NOTEBOOK{_NOTEBOOK}")
    more = f" (and {len(commands) - _SHOWN} more)" if len(commands) > _SHOWN else ""
    return " or ".join(f"memcalc simulate -- {one}" for one in commands[:_SHOWN]) + more


def find_commands(text: str) -> list[str]:
    """Return the lines of a shell script that start Python; the script is never run."""
    found: dict[str, None] = {}
    for line in re.split(r"\n|;|&&|\|\|", text.replace("\\\n", " ")):
        words = line.split()
        at = _find_start(words)
        if at is not None and all(_ASSIGNMENT.fullmatch(word) for word in words[:at]):
            found[" ".join(word for word in words if word not in _ALL_ARGUMENTS)] = None
    return list(found)


def _find_start(words: Sequence[str]) -> int | None:
    """Return the index of the word with which a Python program begins, or None."""
    for at, word in enumerate(words):
        name = Path(word).name
        starts = name in launchers.NAMES or name == SERVER or name.endswith(".py")
        if starts or PYTHON.fullmatch(name):
            return at
    return None
