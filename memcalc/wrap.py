"""Wraps lines at a terminal's width; no figure is parted from its unit."""

import re
import textwrap

TIE = "\ue000"
"""Stands for a space at which no line ends."""
_FIGURE = re.compile(r"(?<=\d) (?=(?:[KMGT]iB|B|tokens|GPUs)\b)|(?<=\d) (?=(?:to|of|x) [\d.,]+ )")
MAY_BREAK = "\x1f"
"""Stands where a line may end; it takes no column, and rich ends a line at it as at a space."""
_PART = re.compile(r"(?<=[\w\]][./])(?=[A-Za-z_\[])")
"""Where a path of modules or folders may be parted."""


def tied(text: str) -> str:
    """Return the text with no-break spaces between figures and their units."""
    return _FIGURE.sub(TIE, text)


def parted(text: str) -> str:
    """Return the text with ``MAY_BREAK`` after the dots and slashes of paths."""
    return _PART.sub(MAY_BREAK, text)


def untie(text: str) -> str:
    """Return the text with spaces in place of no-break spaces, and no marks for rich."""
    return text.replace(TIE, " ").replace(MAY_BREAK, "")


def fold(text: str, width: int, hang: int = 0) -> list[str]:
    """Wrap a text into lines of a width; ``hang``: the indent of lines after the first."""
    lines = textwrap.wrap(tied(text), width, subsequent_indent=" " * hang, break_on_hyphens=False)
    return [untie(line) for line in lines]
