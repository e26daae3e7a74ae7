"""Folders that a script made for files that were not written."""

from __future__ import annotations

import contextlib
import os
from typing import Any

from memcalc.script.patches import Patches


def install(patches: Patches) -> None:
    """Remove at the end what the script made and left empty."""
    made: list[str] = []
    remove = os.rmdir

    def mkdir(original: Any, path: Any, *args: Any, **kwargs: Any) -> None:
        original(path, *args, **kwargs)
        if kwargs.get("dir_fd") is None:
            made.append(os.path.abspath(os.fsdecode(path)))

    def clear() -> None:
        for folder in reversed(made):
            with contextlib.suppress(OSError):
                remove(folder)

    patches.also(clear)
    patches.wrap(os, "mkdir", mkdir)
