"""Finds the line of the user's code that is running."""

import functools
import re
import sys
import sysconfig
from collections.abc import Collection, Sequence
from pathlib import Path
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


def find_line() -> str:
    """Return the user's innermost running line in this thread, as ``train.py:41``, or ""."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if is_users(file):
            return f"{Path(file).name}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""


def find_in_frames(frames: Sequence[dict[str, Any]]) -> str:
    """Return the user's innermost line in the frames of an allocation, or ""."""
    for frame in frames:
        if is_users(frame["filename"]):
            return f"{Path(frame['filename']).name}:{frame['line']}"
    return ""
