"""Finds the line of the user's code that is running."""

import ast
import functools
import os
import re
import sys
import sysconfig
from collections.abc import Collection, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

_OURS = str(Path(__file__).resolve().parents[1])
_PATHS = sysconfig.get_paths()
_LIBRARIES = _OURS, *(_PATHS[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))
_INSTALLED = re.compile(r"[\\/](?:site|dist)-packages[\\/]|[\\/](?:torch|triton)[\\/]")
"""Matches files of packages in other environments or folders."""


_SHOWN = 6
"""The most lines that a sentence names."""


def join_lines(lines: Collection[str]) -> str:
    """Join the first six lines by commas, with the number of the others."""
    shown = [*lines][:_SHOWN]
    more = len(lines) - len(shown)
    return ", ".join([*shown, *([f"{more} more"] if more else [])])


@functools.cache
def is_users(file: str) -> bool:
    """Return True if a file is the user's own, and not of Python, memcalc or a package."""
    return not file.startswith((*_LIBRARIES, "<")) and not _INSTALLED.search(file)


def called_name(function: ast.expr) -> str:
    """Return the name of a called function or method, or an empty text."""
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def users_frame(*, direct: bool = False) -> FrameType | None:
    """Return the innermost frame of the user's code in this thread, or None.

    ``direct``: None if a package's code runs below it.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_users(frame.f_code.co_filename):
        if direct and _INSTALLED.search(frame.f_code.co_filename):
            return None
        frame = frame.f_back
    return frame


def find_line() -> str:
    """Return the user's innermost running line, such as ``train.py:41``, or ""."""
    frame = users_frame()
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}" if frame else ""


def find_in_frames(frames: Sequence[dict[str, Any]]) -> str:
    """Return the user's innermost line in the frames of an allocation, or ""."""
    for frame in frames:
        if is_users(frame["filename"]):
            return f"{Path(frame['filename']).name}:{frame['line']}"
    return ""
