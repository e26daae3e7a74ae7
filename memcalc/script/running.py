"""Runs a program as Python would, in the process that follows it."""

from __future__ import annotations

import contextlib
import os
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from memcalc.script.command import Program


def run(program: Program) -> dict[str, Any]:
    """Run it to its end; returns its variables."""
    if program.path:
        return runpy.run_path(program.path, run_name="__main__")
    return runpy.run_module(program.module, run_name="__main__", alter_sys=True)


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
