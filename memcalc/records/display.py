"""How a record shows itself in a notebook: whatever the package's face has installed for that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_renderers: list[Callable[[Any], str]] = []


def install(renderer: Callable[[Any], str]) -> None:
    """Render records as HTML with this function from now on."""
    _renderers[:] = [renderer]


def html(record: object) -> str | None:
    """The record as HTML; ``None`` where nothing is installed, so that a notebook shows text."""
    return _renderers[0](record) if _renderers else None
