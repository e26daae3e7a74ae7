"""A placeholder for a compiled extension that is not installed."""

from __future__ import annotations

from typing import Any


class Inert:
    """Has every function that is asked for, and none of them does anything."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: 0
