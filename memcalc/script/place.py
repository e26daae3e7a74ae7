"""Where in the user's own code the program is."""

from __future__ import annotations

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


def line() -> str:
    """The innermost line that is not of an installed package, as ``train.py:41``; else empty."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((*_LIBRARIES, "<")):
            return f"{Path(file).name}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""
