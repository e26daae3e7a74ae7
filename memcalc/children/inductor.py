"""PyTorch's compiler makes a folder for what it compiles as it is imported; here nothing is."""

from __future__ import annotations

import os
import tempfile

_FOLDER = "TORCHINDUCTOR_CACHE_DIR"


def elsewhere() -> dict[str, str]:
    """For the environment of a process that compiles nothing: any folder that exists will do."""
    return {_FOLDER: os.environ.get(_FOLDER) or tempfile.gettempdir()}
