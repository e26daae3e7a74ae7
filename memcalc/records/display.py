"""Records that show themselves: as text, as HTML in a notebook, as a figure.

The renderers lie above the records, so the package's ``__init__`` installs them here.
"""

from collections.abc import Callable
from typing import Any

_installed: dict[str, Callable[[Any], Any]] = {}


def install(**renderers: Callable[[Any], Any]) -> None:
    """Install the functions that render records: ``text``, ``html``, ``figure``, ``frame``."""
    _installed.update(renderers)


class Answer:
    """A record that prints as the terminal shows it."""

    __slots__ = ()

    def __str__(self) -> str:
        return str(_installed["text"](self)) if _installed else super().__repr__()

    def __repr__(self) -> str:
        first = str(self).partition("\n")[0]
        return f"<{type(self).__name__}: {first.strip()}>" if _installed else super().__repr__()

    def _repr_html_(self) -> str | None:
        return str(_installed["html"](self)) if _installed else None

    def to_dataframe(self) -> Any:
        """Return the answer as a pandas DataFrame: a prediction's row, or its largest table.

        Raises:
            UsageError: pandas is not installed.
        """
        return _installed["frame"](self)


def figure(record: object) -> Any:
    """Return a record as a matplotlib figure.

    Raises:
        RuntimeError: nothing is installed that draws.
    """
    if not _installed:
        raise RuntimeError("Import memcalc, which draws records.")
    return _installed["figure"](record)
