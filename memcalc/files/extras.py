"""Packages that only some answers need; asked for before anything is computed for them."""

from __future__ import annotations

import importlib.util

from memcalc.errors import UsageError

_WORDS = {"matplotlib": "Pictures need matplotlib", "plotext": "--plot needs plotext"}


def require(package: str) -> None:
    """Refuse what cannot be drawn.

    Raises:
        UsageError: the package is not installed.
    """
    if importlib.util.find_spec(package) is None:
        raise UsageError(f"{_WORDS[package]}: type pip install 'torch-memcalc[report]'.")
