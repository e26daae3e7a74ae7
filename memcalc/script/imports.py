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

_CHANGES_PATH = re.compile(r"\bsys\.path\b|\bmeta_path\b|\baddsitedir\b|\bpip\b")
"""Words of scripts that may find, or install, what is not there when they begin."""
_ASKS = """
import importlib.util, sys
print(*(name for name in sys.argv[1:] if importlib.util.find_spec(name) is None))
"""


def check_imports(
    program: Program, typed: str, folder: Path, python: str, provided: Iterable[str]
) -> None:
    """See that the packages that a script imports first of all are there.

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
    if path.suffix != ".py":
        return
    wanted = _imported(path) - sys.stdlib_module_names - set(provided)
    wanted = {name for name in wanted if not _is_beside(path, name)}
    lacking = _lacking(python, wanted) if wanted else []
    if not lacking:
        return
    own = shutil.which("python") or shutil.which("python3")
    if own is not None and Path(own) != Path(python) and _has(own, lacking):
        told = f"type memcalc simulate --python $(which {Path(own).name}) -- {typed}"
    elif not (told := how_to_install(lacking)):
        told = "install it there, or name the Python that has it with --python"
    raise EstimateError(
        f"{path.name} imports {', '.join(lacking)}, and {python}, which would run it, lacks that: "
        f"{told}."
    )


def _imported(path: Path) -> set[str]:
    """Return the packages that a script imports whatever happens; empty: that cannot be told."""
    try:
        text = path.read_text(encoding="utf-8")
        body = ast.parse(text).body
    except (OSError, ValueError, SyntaxError, RecursionError):
        return set()
    if _CHANGES_PATH.search(text):
        return set()
    found = [alias.name for node in body if isinstance(node, ast.Import) for alias in node.names]
    found += [
        node.module
        for node in body
        if isinstance(node, ast.ImportFrom) and node.module is not None and not node.level
    ]
    return {name.partition(".")[0] for name in found}


def _is_beside(path: Path, name: str) -> bool:
    return any((path.parent / one).exists() for one in (name, f"{name}.py"))


def _has(python: str, names: Iterable[str]) -> bool:
    """Return True if another Python finds PyTorch and these packages."""
    return _asked(python, ["torch", *names]) == []


def _lacking(python: str, names: Iterable[str]) -> list[str]:
    """Return which packages a Python does not find; none where it cannot be asked."""
    if python == sys.executable:
        return sorted(name for name in names if importlib.util.find_spec(name) is None)
    return _asked(python, names) or []


def _asked(python: str, names: Iterable[str]) -> list[str] | None:
    asked = [python, "-c", _ASKS, *sorted(names)]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.split()
