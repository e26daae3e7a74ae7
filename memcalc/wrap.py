"""Wraps lines at a terminal's width; no figure is parted from its unit."""

import re
import textwrap

TIE = "\ue000"
"""Stands for a space at which no line ends."""
_FIGURE = re.compile(r"(?<=\d) (?=(?:[KMGT]iB|B|tokens|GPUs)\b)|(?<=\d) (?=(?:to|of|x) [\d.,]+ )")


def tied(text: str) -> str:
    """The text with ties between figures and their units."""
    return _FIGURE.sub(TIE, text)


def untie(text: str) -> str:
    """Return the text with spaces again."""
    return text.replace(TIE, " ")


def fold(text: str, width: int, hang: int = 0) -> list[str]:
    """Break a text between words; ``hang`` spaces begin lines after the first."""
    lines = textwrap.wrap(tied(text), width, subsequent_indent=" " * hang, break_on_hyphens=False)
    return [untie(line) for line in lines]
