"""Texts that memcalc writes from templates: scripts, settings and budget files."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parent.parent / "templates"


def render(name: str, filters: dict[str, Callable[..., str]] | None = None, **context: Any) -> str:
    """Return a filled-in template of ``memcalc/templates``, without escaping."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    found = Environment(
        loader=FileSystemLoader(_FOLDER),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    found.filters |= filters or {}
    return found.get_template(name).render(context)
