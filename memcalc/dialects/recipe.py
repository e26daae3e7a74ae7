"""Reads the keys of a recipe: each is a setting, changes no memory, or is refused by its name."""

import copy
import fnmatch
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from memcalc import registry
from memcalc.dialects.edit import show_value
from memcalc.dialects.format import Format
from memcalc.errors import UsageError, unknown
from memcalc.files import untrusted_values

_LARGEST = 1 << 20
"""Bytes of a recipe; the longest of the frameworks' own examples has 10 thousand."""
_DEGREES = ("_size", "_degree", "_dim")
"""Ends of keys that ask for nothing where they are 1."""
_LEFT_OUT: tuple[Any, ...] = (None, False, "", [], {}, "none", "no")
_SWITCH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a training framework, as settings of a plan."""

    file: str
    """As people named it."""
    dialect: str = ""
    """Name of its format."""
    settings: dict[str, Any] = msgspec.field(default_factory=dict)
    """Fields of a plan."""
    unread: tuple[str, ...] = ()
    """What changes memory and is not counted; one clause each."""
    defaults: tuple[str, ...] = ()
    """Keys that the file leaves to its framework, with the framework's values."""
    loss_piece: int | None = None
    """Tokens that the loss is computed of at once; None: all, or the settings say it."""
    spelled: dict[str, str] = msgspec.field(default_factory=dict)
    """Other names that the file uses for keys."""


def own_command(file: str, command: str) -> str:
    """Return the framework's own command for a recipe; a script is run as it is."""
    return f"bash {file}" if file.endswith(".sh") else command


def make_verb_error(file: str, command: str, verb: str) -> UsageError:
    """Return the error for a recipe of a framework's verb that an estimate does not answer."""
    return UsageError(
        f"{file} is a recipe of {verb}, which an estimate does not train: run it by "
        f"memcalc simulate -- {own_command(file, command)}."
    )


class Keys:
    """The keys of a recipe; remembers which were read, to refuse those that were not."""

    def __init__(
        self, data: Mapping[str, Any], file: str, framework: str, form: Format, prefix: str = ""
    ) -> None:
        """Take the keys of a file, and refuse those that have no place in a plan.

        Args:
            data: the file, or a section of it.
            file: its name.
            framework: its framework's name.
            form: what is known of the keys.
            prefix: of the section's keys, in messages.

        Raises:
            UsageError: a key asks for what memcalc does not answer.
        """
        self.data, self.file, self.framework, self.form = data, file, framework, form
        self._prefix, self._defaults = prefix, dict(form.defaults)
        self._read: set[str] = set()
        self._taken: dict[str, Any] = {}
        self._spelled: dict[str, str] = {}
        self.unread: list[str] = []
        self.loss_piece: int | None = None
        self._check_refused_keys()

    def view(self, data: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> "Keys":
        """Return the same keys over other values or defaults, with shared bookkeeping."""
        other = copy.copy(self)
        other.data, other._defaults = data, {**self._defaults, **(defaults or {})}
        return other

    def section(self, name: str, prefix: str = "") -> "Keys":
        """Return a nested table of the recipe as keys, without ``prefix`` before their names.

        Raises:
            UsageError: it is no table, or has a key that memcalc does not answer.
        """
        found = self.get(name)
        if found is None:
            found = {}
        if not isinstance(found, dict):
            raise UsageError(f"{self.file}: {name} = {str(found)[:40]!r} is no table of settings.")
        data = {str(key).removeprefix(prefix): one for key, one in found.items()}
        form = self.form.sections.get(name, Format())
        return Keys(data, self.file, self.framework, form, prefix or f"{name}.")

    def get(self, *names: str) -> Any:
        """Return a key's value under its first name that is set, else the framework's default.

        Returns:
            The first value there is, or the framework's default of the first name.
        """
        self._read.update(names)
        found = next((name for name in names if self.data.get(name) is not None), None)
        if found is not None:
            if found != names[0]:
                self._spelled[names[0]] = found
            return self.data[found]
        default = self._defaults.get(names[0])
        if default is not None:
            self._taken[names[0]] = default
        return default

    def flag(self, *names: str, default: bool = False) -> bool:
        """Return a switch as a bool, also from a text such as "true"."""
        value = self.get(*names)
        if value in (None, ""):
            return default
        found = _SWITCH.get(str(value).strip().lower())
        if found is None:
            raise self.refusal(names[0], value, "is neither true nor false")
        return found

    def any_flag(self, names: str) -> bool:
        """Return True if one of several switches (names with spaces) is on."""
        on = [self.flag(name) for name in names.split()]
        return any(on)

    def count(self, *names: str) -> int | None:
        """Return a whole number from 1, also from a text such as "1e8", or None."""
        value = self.get(*names)
        if value is None:
            return None
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            number = 0.0
        if isinstance(value, bool) or not 1 <= number < 1 << 53 or not number.is_integer():
            raise self.refusal(names[0], value, "is not a whole number from 1")
        return int(number)

    def text(self, *names: str) -> str | None:
        """Return a key's text, or None if it is missing or empty."""
        value = self.get(*names)
        if value is not None and not isinstance(value, str):
            raise self.error(names[0], "is no text", "correct it")
        return value or None

    def texts(self, *names: str) -> list[str]:
        """Return a list of texts, also from one text with commas."""
        value = self.get(*names)
        if isinstance(value, str):
            value = [part.strip() for part in value.split(",") if part.strip()]
        if value is not None and not (
            isinstance(value, list) and all(isinstance(one, str) for one in value)
        ):
            raise self.error(names[0], "is no list of names", "correct it")
        return value or []

    def choice(self, key: str, names: tuple[str, ...], default: str) -> str:
        """Return one of some names, also from its number counted from 1."""
        value = self.get(key)
        written = str(default if value is None else value).upper()
        if written.isdigit() and 0 < int(written) <= len(names):
            return names[int(written) - 1]
        if written not in names:
            shown = f"{self._prefix}{key} = {written}"
            raise UsageError(f"{self.file}: {shown} is none of {', '.join(names)}.")
        return written

    def setting(self, name: str) -> tuple[str, ...]:
        """Return the names of the format's keys for a plan's setting."""
        return tuple(self.form.keys.get(name, "").split())

    def refusal(self, key: str, value: Any, why: str) -> UsageError:
        """Return the error for a value of the wrong type."""
        return UsageError(f"{self.file}: {self._prefix}{key} = {value!r} {why}.")

    def error(self, key: str, why: str, instead: str = "", value: Any = None) -> UsageError:
        """Return the error for a key that is refused: its value, the reason and what to do."""
        value = self.data.get(key, self._defaults.get(key)) if value is None else value
        shown = " ".join(str(value).split())
        shown = shown if len(shown) <= 40 else f"{shown[:40]}..."
        own = own_command(self.file, self.form.command.format(file=self.file))
        if not instead and own:
            instead = f"remove it, or run the recipe itself: memcalc simulate -- {own}"
        name = f"{self._prefix}{key}"
        return UsageError(f"{self.file}: {name} = {shown} {why}: {instead or 'remove it'}.")

    def _check_refused_keys(self) -> None:
        for pattern, what in self.form.reasons.items():
            for key in fnmatch.filter(map(str, self.data), pattern):
                self._read.add(key)
                alone = self.data[key] == 1 and key.endswith(_DEGREES)
                if self.data[key] not in _LEFT_OUT and not alone:
                    raise self.error(key, f"({what}) has no place in an estimate")

    def finish(self) -> None:
        """Raise UsageError for keys that were not read; note those that change memory a little.

        Raises:
            UsageError: a key was not read, and is not known to change no memory.
        """
        for key, what in self.form.noted.items():
            value = self.get(key)
            is_on = value > 0 if isinstance(value, int | float) else self.flag(key)
            if is_on and what not in self.unread:
                self.unread.append(what)
        known = f"{self.form.no_effect} {self.form.ignored}".split()
        for key, value in self.data.items():
            if key in self._read or any(fnmatch.fnmatchcase(key, one) for one in known):
                continue
            declared = [one for one in self.form.declared if key in one]
            if any(one[key] == value for one in declared):
                # As good as left out.
                continue
            if declared:
                raise self.error(key, "may change memory, and memcalc does not know how")
            name = f"{self._prefix}{key}"
            if self.form.incomplete:
                raise UsageError(
                    f"{self.file}: memcalc does not know whether {name} changes memory: correct "
                    "it, or remove it."
                )
            hint = f"correct it in {self.file}, or remove it."
            names = [f"{self._prefix}{one}" for one in (*known, *self._read)]
            raise unknown(f"key of {self.framework}", name, names, hint=hint)

    def recipe(self, settings: Mapping[str, Any]) -> Recipe:
        """Return the settings as a recipe, after checking that every key was read.

        Raises:
            UsageError: there is a key that is not known.
        """
        self.finish()
        return Recipe(
            file=self.file,
            dialect=self.framework,
            settings={key: one for key, one in settings.items() if one is not None},
            unread=tuple(self.unread),
            defaults=tuple(f"{key} {show_value(value)}" for key, value in self._taken.items()),
            loss_piece=self.loss_piece,
            spelled=self._spelled,
        )


def flatten(data: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Return the values of nested tables by the path of their keys, with dots between."""
    found: dict[str, Any] = {}
    for key, value in data.items():
        inside = isinstance(value, dict) and value
        found |= flatten(value, f"{above}{key}.") if inside else {f"{above}{key}": value}
    return found


def read_text(path: Path) -> str:
    """Return the text of a file, at most a few MiB.

    Raises:
        UsageError: it cannot be read, or is no text.
    """
    try:
        return untrusted_values.content(path, _LARGEST).decode("utf-8-sig")
    except ValueError as error:
        raise UsageError(f"{path} is no text: {untrusted_values.reason(error)}.") from None


def parse_table(written: str, path: Path) -> dict[str, Any]:
    """Parse a file's text, JSON or YAML by its suffix, as a table.

    Raises:
        UsageError: it holds something else.
    """
    kind = "JSON" if path.suffix == ".json" else "YAML"
    try:
        if kind == "JSON":
            data = untrusted_values.loads(written.encode())
        else:
            data = untrusted_values.yaml(written)
    except ValueError as error:
        raise UsageError(f"{path} is not {kind}: {error}.") from None
    if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
        raise UsageError(f"{path} holds no table of settings.")
    return data


def read_table(path: Path) -> dict[str, Any]:
    """Read a JSON or YAML file as a table.

    Raises:
        UsageError: it cannot be read, or holds something else.
    """
    return parse_table(read_text(path), path)


def model(keys: Keys, *names: str) -> str | None:
    """Return the recipe's model name; refuse one that names code to run."""
    found = keys.text(*names)
    if found is not None and ":" in found:
        key = next(name for name in names if keys.data.get(name))
        raise keys.error(key, "is no model of the hub or folder", "a recipe cannot name code")
    return found


def optimizer(keys: Keys, loop: str, *names: str) -> str | None:
    """Return the recipe's optimizer name; refuse one that memcalc does not know.

    Raises:
        UsageError: it is unknown, or code that an estimate would run.
    """
    found = keys.text(*names)
    if found is None:
        return None
    key = next((name for name in names if keys.data.get(name)), names[0])
    try:
        known = not registry.find(found, {}, loop).row.foreign
    except UsageError:
        known = False
    if not known:
        raise keys.error(key, "is no optimizer that memcalc knows", "see memcalc list optimizers")
    return found


def select_arguments(
    keys: Keys, key: str, name: str, loop: str, pairs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments of an optimizer that change memory.

    Raises:
        UsageError: it does not take one.
    """
    row = registry.find(name, {}, loop).row
    if strange := next((one for one in pairs if one not in (*row.defaults, *row.takes)), None):
        raise keys.error(key, f"has {strange}, which {name} does not take")
    return {one: value for one, value in pairs.items() if one in row.defaults}


def attention(keys: Keys) -> str | None:
    """Return the recipe's attention by the plan's name, or None for the model's own.

    Raises:
        UsageError: it is one that memcalc does not run.
    """
    names = keys.setting("attention")
    named = keys.text(*names)
    if named not in (None, *keys.form.attention):
        raise keys.error(names[0], "is an attention that memcalc does not run")
    return keys.form.attention[named] or None if named is not None else None
