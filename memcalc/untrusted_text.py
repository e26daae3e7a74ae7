r"""Text from outside, such as names, paths, frames and errors, made harmless where it is printed.

There is a function for each medium. What a medium cannot show is written as an escape (``\x1b``),
so that a reader sees that it was there; what it would obey is written so that it is only read.
HTML is escaped by its template and XML by its writer, both of them after ``line``.
"""

import html
import re
from collections.abc import Sequence
from json import dumps

_COMMAND = re.compile(r"##(?=\w*\[)")
"""Begins a command to the runners of Azure, TeamCity and GitHub, anywhere in a line of a log."""
_LEADING_COMMAND = re.compile(r"^([^\S\n]*):(?=:)", re.MULTILINE)
"""Begins a command to GitHub's runner, where a line begins with it."""
_LEADING = re.compile(r"^(\d+(?=[.)](?:\s|$))|(?=[-+=](?:[-+=\s]|$))|(?=\[|::))(.)")
"""What makes a list, a task, a heading or a command of a line that begins with it."""
_SPECIAL = re.compile(r"[\\`*#|~@$]|(?<![^\W_])_|_(?![^\W_])|\](?=[\[(:])")
_ESCAPE = re.compile(r"\\ud[89ab]\w{2}\\ud[c-f]\w{2}|\\(?:(ud[89a-f]\w{2})|.)")
"""An escape of JSON; its group is half a surrogate pair without the other."""
_LONGEST = 100_000
"""Signs of a text that are shown: to break a name of millions into lines takes minutes."""
_FORMULA = ("=", "+", "-", "@", "::")


def line(text: str) -> str:
    """Return a text in one line, cut if very long, with all unprintable characters escaped."""
    if len(text) > _LONGEST:
        text = f"{text[:_LONGEST]}..."
    if not text.isprintable():
        text = "".join(sign if sign.isprintable() else _escape_character(sign) for sign in text)
    return _COMMAND.sub("# #", text)


def lines(text: str) -> str:
    """Return a text for a CI log, with no line that the runner takes for a command."""
    return _LEADING_COMMAND.sub(r"\1: ", text)


def markdown(text: str) -> str:
    """Escape a text for Markdown, for a paragraph or a table cell."""
    plain = html.escape(line(text).strip(), quote=False)
    plain = _SPECIAL.sub(lambda match: f"&#{ord(match[0])};", plain)
    return _LEADING.sub(lambda found: f"{found[1]}&#{ord(found[2])};", plain)


def grid(head: Sequence[str], rows: Sequence[Sequence[str]], words: Sequence[int] = (0,)) -> str:
    """Return a Markdown table; ``words``: the left-aligned columns."""
    rule = ("---" if at in words else "---:" for at in range(len(head)))
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, rule, *rows))


def json(text: str) -> str:
    """Return JSON text with all unprintable characters escaped.

    A byte that was no UTF-8 is half a surrogate pair in Python, which no JSON reader takes: it
    becomes the text of its escape.
    """
    if not text.replace("\n", "").isprintable():
        text = "".join(s if s.isprintable() or s == "\n" else dumps(s)[1:-1] for s in text)
    if r"\ud" in text:
        text = _ESCAPE.sub(lambda found: rf"\\{found[1]}" if found[1] else found[0], text)
    return _COMMAND.sub(r"#\\u0023", text)


def cell(value: object) -> object:
    """Return a CSV value that no spreadsheet takes for a formula."""
    if not isinstance(value, str):
        return value
    plain = line(value)
    return f"'{plain}" if plain.lstrip().startswith(_FORMULA) else plain


def picture(text: str) -> str:
    """Return a text for matplotlib, with ``$`` escaped."""
    return line(text).replace("$", r"\$")


def github(text: str) -> str:
    """Escape the message of a GitHub workflow command."""
    return line(text).replace("%", "%25")


def github_property(text: str) -> str:
    """Escape a property of a GitHub workflow command."""
    return github(text).replace(":", "%3A").replace(",", "%2C")


def _escape_character(sign: str) -> str:
    return " " if sign.isspace() else sign.encode("unicode_escape").decode("ascii")
