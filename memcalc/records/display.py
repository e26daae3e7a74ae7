"""How a record shows and draws itself: whatever the package's face has installed for that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_renderers: list[Callable[[Any], str]] = []
_painters: list[Callable[[Any], Any]] = []


def install(renderer: Callable[[Any], str], painter: Callable[[Any], Any]) -> None:
    """Render records as HTML and draw them with these functions from now on."""
    _renderers[:] = [renderer]
    _painters[:] = [painter]


def html(record: object) -> str | None:
    """The record as HTML; ``None`` where nothing is installed, so that a notebook shows text."""
    return _renderers[0](record) if _renderers else None


def figure(record: object) -> Any:
    """The record as a figure of matplotlib.

    Raises:
        RuntimeError: nothing is installed that draws.
    """
    if not _painters:
        raise RuntimeError("Import memcalc, which draws records.")
    return _painters[0](record)
