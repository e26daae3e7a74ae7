"""A program run as Python runs it, in the process that has the simulated GPU."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path

from memcalc.script import exact_types
from memcalc.script.command import Program


def run(program: Program) -> None:
    """Run it to its end."""
    named = exact_types.globals_of(program.path or _source(program.module))
    if program.path:
        runpy.run_path(program.path, named, run_name="__main__")
    else:
        runpy.run_module(program.module, named, run_name="__main__", alter_sys=True)


def _source(module: str) -> str | None:
    """Where a module lies that is to run; of one that is not there runpy says what is wrong."""
    with contextlib.suppress(ImportError, ValueError):
        found = importlib.util.find_spec(module)
        if found is not None and found.submodule_search_locations is not None:
            found = importlib.util.find_spec(f"{module}.__main__")
        return found.origin if found is not None else None
    return None


@contextlib.contextmanager
def as_main(program: Program) -> Iterator[None]:
    """Arguments and import path as Python gives them to a program."""
    before = sys.argv, list(sys.path)
    sys.argv = [program.path or program.module, *program.arguments]
    here = str(Path(program.path).resolve().parent) if program.path else os.getcwd()
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.argv = before[0]
        sys.path[:] = before[1]
