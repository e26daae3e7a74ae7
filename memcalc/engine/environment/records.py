"""The PyTorch that the engine's process imports."""

from __future__ import annotations

import os
from collections.abc import Mapping

import msgspec


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """Which PyTorch the engine's process imports, and what must be set for that."""

    root: str
    """PyTorch's package folder."""
    torch: str
    """Release, without its local part: ``2.14.1``."""
    cuda: str
    """CUDA it was built for: ``13.0``."""
    path: tuple[str, ...] = ()
    """Folders that come first on ``PYTHONPATH``."""
    hidden: tuple[str, ...] = ()
    """Modules of installed packages that do not go with this PyTorch or transformers."""

    def variables(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Environment variables of the engine's process: ``PYTHONPATH`` with ``path`` first."""
        if not self.path:
            return dict(environ)
        before = environ.get("PYTHONPATH")
        entries = (*self.path, *((before,) if before else ()))
        return {**environ, "PYTHONPATH": os.pathsep.join(entries)}
