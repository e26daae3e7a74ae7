"""Commands of frameworks in shell scripts, as tables of settings; nothing in a script is run."""

import re
import shlex
from typing import Any

from memcalc.errors import UsageError
from memcalc.files import untrusted_values

_TRAINERS = {"swift": ("sft", "pt", "rlhf"), "trl": ("sft",), "llamafactory-cli": ("train",)}
_SET = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_MOST = 4096
"""Words of a script; the longest of the frameworks' examples has some 200."""


def command_in(text: str) -> dict[str, Any] | None:
    """Return a shell script's first training command as a table of options, or None.

    Returns:
        Options as a table, as if they stood in a file; None: there is no such command.

    Raises:
        UsageError: it cannot be read without running the script.
    """
    lines = re.sub(r"\\\r?\n", " ", text).splitlines()[:_MOST]
    known: dict[str, str] = {}
    for line in lines:
        try:
            # A command in a command is one word.
            line = re.sub(r"(\$\(\([^()']{0,200}\)\)|\$\([^()']{0,200}\))", r"'\1'", line)
            words = shlex.split(line, comments=True)[:_MOST]
        except ValueError:
            continue
        first = 0
        while first < len(words) and (found := _SET.fullmatch(words[first].removeprefix("export"))):
            known[found[1]] = _fill_variables(found[2], known)
            first += 1
        words = words[first:]
        if words[:1] == ["export"]:
            for word in words[1:]:
                if found := _SET.fullmatch(word):
                    known[found[1]] = _fill_variables(found[2], known)
            continue
        place = next((n for n, word in enumerate(words[:-1])
                      if words[n + 1] in _TRAINERS.get(word, ())), None)  # fmt: skip
        if place is not None:
            return _options(words[place], words[place + 1], words[place + 2 :], known)
    return None


def _fill_variables(word: str, known: dict[str, str]) -> str:
    """Return a word with ``$NAME`` replaced by known values."""
    return re.sub(r"\$\{?(\w+)\}?", lambda found: known.get(found[1], found[0]), word)


def _options(program: str, verb: str, words: list[str], known: dict[str, str]) -> dict[str, Any]:
    """Return a command's words as a table of options, with variables filled in."""
    found: dict[str, Any] = {}
    key = ""
    for word in words:
        if word in (">", "2>&1", "|", "&", ";", "&&"):
            break
        if word.startswith("--") and len(word) > 2:
            key, _, value = word[2:].partition("=")
            found[key] = [value] if value else []
        elif key:
            found[key].append(word)
    options = {key: _parse_values(key, [_fill_variables(one, known) for one in values])
               for key, values in found.items()}  # fmt: skip
    if program != "swift":
        return options
    capital = {key: _parse_values(key, [one]) for key, one in known.items() if key.isupper()}
    return {"swift_command": verb, **capital, **options}


def _parse_values(key: str, values: list[str]) -> Any:
    if not values:
        return True
    read = [_parse_scalar(key, value) for value in values]
    return read[0] if len(read) == 1 else read


def _calculate(text: str) -> int | None:
    """Return the value of a product or quotient of whole numbers, or None for other text."""
    first, *rest = re.split(r"\s*\\?([*/])\s*", text.strip())
    if not all(number.isdigit() and len(number) < 7 for number in (first, *rest[1::2])):
        return None
    found = int(first)
    for sign, number in zip(rest[::2], map(int, rest[1::2]), strict=True):
        if sign == "/" and not number:
            return None
        found = found * number if sign == "*" else found // number
    return found


def _parse_scalar(key: str, text: str) -> Any:
    written = re.fullmatch(r"\$\(\(([^()]+)\)\)|\$\(\s*expr ([^()]+)\)", text)
    if written and (found := _calculate(written[1] or written[2])) is not None:
        return found
    if "$(" in text or "`" in text:
        raise UsageError(f"--{key} {text[:40]} is known once the script runs: write its value.")
    try:
        value = untrusted_values.yaml(text)
    except ValueError:
        return text
    return value if isinstance(value, str | int | float | bool | dict | list) else text
