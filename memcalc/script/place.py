"""Where in the user's own code the program is."""

from __future__ import annotations

import re
import sys
import sysconfig
from pathlib import Path

_OURS = str(Path(__file__).resolve().parents[1])
_LIBRARIES = tuple(
    {
        _OURS,
        *(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    }
)

_INSTALLED = re.compile(r"[\\/](?:site|dist)-packages[\\/]")
"""Of a package that another environment lends."""


def line() -> str:
    """The innermost line that is not of an installed package, as ``train.py:41``; else empty."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((*_LIBRARIES, "<")) and not _INSTALLED.search(file):
            return f"{Path(file).name}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""


def named(what: str) -> str:
    """What is said, with the line it is said of behind it."""
    at = line()
    return f"{what} ({at})" if at else what
