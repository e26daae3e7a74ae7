"""C that a long computation runs in where there is a compiler; everywhere else it has a twin."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from memcalc.files import cache

_PATIENCE = 60


def compiler() -> str | None:
    """The C compiler of the system, or the one named in ``$CC``; ``None``: there is none."""
    return shutil.which(os.environ.get("CC", "cc"))


@functools.cache
def library(source: Path) -> ctypes.CDLL | None:
    """A C file as a library, compiled once and kept in the user's cache.

    Returns:
        The library; ``None`` where it cannot be compiled, kept or loaded.
    """
    found = compiler()
    if found is None or sys.platform == "win32":
        return None
    try:
        digest = hashlib.sha256(source.read_bytes()).hexdigest()[:20]
        kept = cache.folder() / "compiled" / f"{source.stem}-{digest}.so"
        if not kept.exists():
            _compile(found, source, kept)
        return ctypes.CDLL(str(kept))
    except (OSError, subprocess.SubprocessError):
        return None


def _compile(found: str, source: Path, kept: Path) -> None:
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
        made = Path(folder, kept.name)
        subprocess.run(
            [found, "-O2", "-shared", "-fPIC", "-o", str(made), str(source)],
            capture_output=True,
            check=True,
            timeout=_PATIENCE,
        )
        # Another process may have made it meanwhile: the file appears whole or not at all.
        made.replace(kept)
