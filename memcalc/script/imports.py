"""Finds the packages that a script imports and its Python lacks, before anything is run."""

import ast
import importlib.util
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from memcalc.engine.packages.stand_ins import how_to_install
from memcalc.errors import EstimateError
from memcalc.script.command import Program
from memcalc.version import pip_line

_CHANGES_PATH = re.compile(r"\bsys\.path\b|\bmeta_path\b|\baddsitedir\b|\bpip\b")
"""Words of scripts that may find, or install, what is not there when they begin."""
_ASKS = """
import importlib.util, sys
print(*(name for name in sys.argv[1:] if importlib.util.find_spec(name) is None))
"""


_OF_MODULES = ("", ".py", ".so")
"""Endings of folders, files and extensions that a script may import from its own folder."""


def check_imports(
    program: Program, typed: str, folder: Path, python: str, provided: Iterable[str]
) -> None:
    """Raise if a script's Python lacks a package that the script always imports.

    Args:
        program: a script; of a module nothing is known.
        typed: the command that starts it.
        folder: where it is run.
        python: the Python that runs it.
        provided: packages that memcalc has something in place of.

    Raises:
        EstimateError: one is not there.
    """
    path = folder / program.path
    wanted = find_imports(path) - sys.stdlib_module_names - {*provided}
    if not wanted:
        return
    own = {one.name.partition(".")[0] for one in path.parent.iterdir() if one.suffix in _OF_MODULES}
    lacking = _find_missing(python, wanted - own) if wanted - own else []
    if not lacking:
        return
    other = shutil.which("python") or shutil.which("python3")
    if other not in (None, python) and _find_missing(str(other), ["torch", *lacking]) == []:
        told = f"type memcalc simulate --python $(which {Path(str(other)).name}) -- {typed}"
    elif not (told := how_to_install(lacking)):
        told = f"type {pip_line(lacking, python)}, or name the Python that has it with --python"
    raise EstimateError(
        f"{path.name} imports {', '.join(lacking)}, and {python}, which would run it, lacks that: "
        f"{told}."
    )


def find_imports(path: Path) -> set[str]:
    """Return the packages that a script always imports; empty if it changes the import path."""
    try:
        text = path.read_text(encoding="utf-8") if path.suffix == ".py" else ""
        body = ast.parse(text).body
    except (OSError, ValueError, SyntaxError, RecursionError):
        return set()
    if _CHANGES_PATH.search(text):
        return set()
    found = [alias.name for node in body if isinstance(node, ast.Import) for alias in node.names]
    parts = [node for node in body if isinstance(node, ast.ImportFrom) and not node.level]
    return {name.partition(".")[0] for name in (*found, *(str(node.module) for node in parts))}


def _find_missing(python: str, names: Iterable[str]) -> list[str] | None:
    """Return which packages a Python does not find, or None where it cannot be asked."""
    if python == sys.executable:
        return sorted(name for name in names if importlib.util.find_spec(name) is None)
    command = [python, "-c", _ASKS, *sorted(names)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.split()
