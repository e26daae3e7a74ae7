"""The PyTorch that the engine's process imports."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Literal

import msgspec


class Hidden(msgspec.Struct, frozen=True, kw_only=True):
    """An installed package that does not go with the engine's PyTorch or transformers."""

    package: str
    modules: tuple[str, ...]
    """Names it is imported by."""
    reason: str


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """Which PyTorch the engine's process imports, and what must be set for that."""

    kind: Literal["running", "made"]
    """``running``: of the Python that runs memcalc; ``made``: kept in memcalc's cache."""
    root: str
    """PyTorch's package folder."""
    torch: str
    """Release, without its local part: ``2.14.1``."""
    cuda: str
    """CUDA it was built for: ``13.0``."""
    path: tuple[str, ...] = ()
    """Folders that come first on ``PYTHONPATH``."""
    transformers: str | None = None
    """Version that is imported; ``None``: there is none, or it is hidden."""
    hidden: tuple[Hidden, ...] = ()
    notes: tuple[str, ...] = ()
    """What was done otherwise than the machine's settings say, a sentence each."""

    def variables(self, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
        """Environment variables of the engine's process: ``PYTHONPATH`` with ``path`` first."""
        if not self.path:
            return dict(environ)
        before = environ.get("PYTHONPATH")
        entries = (*self.path, *((before,) if before else ()))
        return {**environ, "PYTHONPATH": os.pathsep.join(entries)}

    def why_hidden(self, module: str) -> str | None:
        """Why a module cannot be imported here; ``None``: it is not hidden."""
        name = module.split(".")[0]
        return next((found.reason for found in self.hidden if name in found.modules), None)
