"""PyTorch's compiler makes a folder for what it compiles as it is imported; here nothing is."""

from __future__ import annotations

import os
import tempfile

_FOLDER = "TORCHINDUCTOR_CACHE_DIR"


def elsewhere() -> dict[str, str]:
    """For the environment of a process that compiles nothing: any folder that exists will do."""
    return {_FOLDER: os.environ.get(_FOLDER) or tempfile.gettempdir()}


def as_it_was() -> None:
    """In that process: what a user's program starts may compile, in a folder of its own."""
    if os.environ.get(_FOLDER) == tempfile.gettempdir():
        del os.environ[_FOLDER]
