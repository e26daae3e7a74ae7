"""The records of a recipe, and the checks that all formats share."""

import ast
import copy
import fnmatch
import importlib.util
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from memcalc import registry
from memcalc.errors import UsageError, unknown
from memcalc.files import untrusted_values

_LARGEST = 1 << 20
"""Bytes of a recipe; the longest of the frameworks' own examples has 10 thousand."""
_DEGREES = ("_size", "_degree", "_dim")
"""Ends of keys that ask for nothing where they are 1."""
_LEFT_OUT: tuple[Any, ...] = (None, False, "", [], {}, "none", "no")


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


class Keys:
    """The keys of a recipe: each is read, known to change no memory, or refused by its name."""

    def __init__(
        self,
        data: Mapping[str, Any],
        file: str,
        framework: str,
        *,
        defaults: Mapping[str, Any] | None = None,
        instead: str = "",
    ) -> None:
        """Take the keys of a file.

        Args:
            data: the file.
            file: its name.
            framework: its framework's name.
            defaults: what the framework takes where a key that changes memory is left out.
            instead: the command that runs the recipe itself.
        """
        self.data, self.file, self.framework = data, file, framework
        self._defaults, self._instead = defaults or {}, instead
        self._read: set[str] = set()
        self._taken: dict[str, Any] = {}
        self._spelled: dict[str, str] = {}
        self.unread: list[str] = []
        self.loss_piece: int | None = None

    def over(self, data: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> "Keys":
        """Read other values, or with further defaults, and count what is read as read here."""
        other = copy.copy(self)
        other.data, other._defaults = data, {**self._defaults, **(defaults or {})}
        return other

    def get(self, *names: str) -> Any:
        """Read a key by its names; a key without a value is left out.

        Returns:
            The first value there is, or the framework's default of the first name.
        """
        self._read.update(names)
        found = next((name for name in names if self.data.get(name) is not None), None)
        if found is not None:
            if found != names[0]:
                self._spelled[names[0]] = found
            return self.data[found]
        if self._defaults.get(names[0]) is not None:
            self._taken[names[0]] = self._defaults[names[0]]
        return self._defaults.get(names[0])

    def flag(self, *names: str) -> bool:
        """Read a switch; False where it is left out."""
        value = self.get(*names)
        return value not in (None, "") and flag(value, names[0], self.file)

    def count(self, *names: str) -> int | None:
        """Read a whole number from 1."""
        value = self.get(*names)
        return None if value is None else count(value, names[0], self.file)

    def text(self, *names: str) -> str | None:
        """Read a text."""
        value = self.get(*names)
        if value is not None and not isinstance(value, str):
            raise self.error(names[0], "is no text", "correct it")
        return value or None

    def texts(self, *names: str) -> list[str]:
        """Read a list of texts, which people also write as one text with commas."""
        value = self.get(*names)
        if isinstance(value, str):
            value = [part.strip() for part in value.split(",") if part.strip()]
        if value is not None and not (
            isinstance(value, list) and all(isinstance(one, str) for one in value)
        ):
            raise self.error(names[0], "is no list of names", "correct it")
        return value or []

    def error(self, key: str, why: str, instead: str = "", value: Any = None) -> UsageError:
        """Build the error for a key: its value, why it is refused and what to do."""
        value = self.data.get(key, self._defaults.get(key)) if value is None else value
        shown = " ".join(str(value).split())
        shown = shown if len(shown) <= 40 else f"{shown[:40]}..."
        if not instead and self._instead:
            instead = f"remove it, or run the recipe itself: memcalc simulate -- {self._instead}"
        return UsageError(f"{self.file}: {key} = {shown} {why}: {instead or 'remove it'}.")

    def refuse(self, refused: Mapping[str, str]) -> None:
        """Refuse what changes memory and has no place in a plan.

        Args:
            refused: what each key or pattern of keys asks for.

        Raises:
            UsageError: the recipe asks for one.
        """
        for pattern, what in refused.items():
            for key in fnmatch.filter(map(str, self.data), pattern):
                self._read.add(key)
                alone = self.data[key] == 1 and key.endswith(_DEGREES)
                if self.data[key] not in _LEFT_OUT and not alone:
                    raise self.error(key, f"({what}) has no place in an estimate")

    def note(self, noted: Mapping[str, str]) -> None:
        """Read switches that change memory a little, and note those that are on."""
        for key, what in noted.items():
            if self.flag(key) and what not in self.unread:
                self.unread.append(what)

    def finish(self, no_effect: str, packages: Iterable["Schema"] = ()) -> None:
        """Refuse keys that were neither read nor are known to change no memory.

        Args:
            no_effect: names and patterns of those, in one text.
            packages: declarations of the installed framework.

        Raises:
            UsageError: there is such a key.
        """
        known = no_effect.split()
        for key in map(str, self.data):
            if key in self._read or any(fnmatch.fnmatchcase(key, one) for one in known):
                continue
            declared = [one for one in packages if key in one.fields]
            if any(one.fields[key] == self.data[key] for one in declared):
                # As good as left out.
                continue
            if declared:
                raise self.error(key, "may change memory, and memcalc does not know how")
            hint = f"correct it in {self.file}, or remove it."
            raise unknown(f"key of {self.framework}", key, [*known, *self._read], hint=hint)

    def recipe(self, dialect: str, settings: Mapping[str, Any]) -> Recipe:
        """Make the recipe of what was read."""
        return Recipe(
            file=self.file,
            dialect=dialect,
            settings={key: one for key, one in settings.items() if one is not None},
            unread=tuple(self.unread),
            defaults=tuple(f"{key} {_shown(value)}" for key, value in self._taken.items()),
            loss_piece=self.loss_piece,
            spelled=self._spelled,
        )


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


class Schema(msgspec.Struct, frozen=True):
    """What an installed package declares of its arguments."""

    fields: dict[str, Any]
    """Names with their defaults, as far as these are literals."""


def schema(package: str, file: str, *classes: str) -> Schema | None:
    """Read the fields that classes declare; their package is parsed and never imported.

    Returns:
        The fields, or None where the package or the file is not there.
    """
    tree = parsed(package, file)
    if tree is None:
        return None
    fields: dict[str, Any] = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name in classes:
            lines = [one for one in node.body if isinstance(one, ast.AnnAssign)]
            fields |= {one.target.id: _default(one.value) for one in lines
                       if isinstance(one.target, ast.Name)}  # fmt: skip
    return Schema(fields)


def parsed(package: str, file: str) -> ast.Module | None:
    """Parse a file of an installed package, which is not imported; None: there is none."""
    folder = _folder_of(package)
    try:
        return ast.parse((folder / file).read_text("utf-8")) if folder is not None else None
    except (OSError, ValueError, SyntaxError):
        return None


def holds(package: str, file: str) -> bool:
    """Tell whether an installed package has a file."""
    folder = _folder_of(package)
    return folder is not None and (folder / file).is_file()


def _folder_of(package: str) -> Path | None:
    """Return where a package is installed, which is not imported."""
    found = importlib.util.find_spec(package)
    folders = list(found.submodule_search_locations or ()) if found is not None else []
    return Path(folders[0]) if folders else None


def _default(node: ast.expr | None) -> Any:
    """The default in ``field(default=...)`` or after an equals sign; ``...``: it is no literal."""
    if isinstance(node, ast.Call):
        node = next((one.value for one in node.keywords if one.arg == "default"), None)
    try:
        return ... if node is None else ast.literal_eval(node)
    except (ValueError, TypeError):
        return ...


def text(path: Path) -> str:
    """Read the text of a file.

    Raises:
        UsageError: it cannot be read, or is no text.
    """
    try:
        return untrusted_values.content(path, _LARGEST).decode("utf-8-sig")
    except ValueError as error:
        raise UsageError(f"{path} is no text: {untrusted_values.reason(error)}.") from None


def mapping(path: Path) -> Mapping[str, Any]:
    """Read a file as a table of settings.

    Raises:
        UsageError: it cannot be read, or holds something else.
    """
    return table_in(text(path), path)


def table_in(written: str, path: Path) -> Mapping[str, Any]:
    """Read the text of a file as a table of settings.

    Raises:
        UsageError: it holds something else.
    """
    kind = "JSON" if path.suffix == ".json" else "YAML"
    try:
        data = (
            untrusted_values.loads(written.encode())
            if kind == "JSON"
            else untrusted_values.yaml(written)
        )
    except ValueError as error:
        raise UsageError(f"{path} is not {kind}: {error}.") from None
    if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
        raise UsageError(f"{path} holds no table of settings.")
    return data


def flag(value: Any, key: str, file: str) -> bool:
    """A switch, which people also write as a text.

    Raises:
        UsageError: it is neither.
    """
    words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    found = words.get(str(value).strip().lower())
    if found is None:
        raise UsageError(f"{file}: {key} = {value!r} is neither true nor false.")
    return found


def count(value: Any, key: str, file: str) -> int:
    """A whole number of at least 1, which people also write as a text or as ``1e8``.

    Raises:
        UsageError: it is none.
    """
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = 0.0
    if isinstance(value, bool) or not 1 <= number < 1 << 53 or not number.is_integer():
        raise UsageError(f"{file}: {key} = {value!r} is not a whole number from 1.")
    return int(number)


def table(data: Mapping[str, Any], key: str, file: str) -> dict[str, Any]:
    """A part of a file with keys of its own; empty where it is missing.

    Raises:
        UsageError: it is something else.
    """
    found = data.get(key)
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise UsageError(f"{file}: {key} = {str(found)[:40]!r} is no table of settings.")
    return {str(name): value for name, value in found.items()}


def by_key(reasons: str) -> dict[str, str]:
    """Return the reason of each key from lines of a reason, a colon and its keys."""
    found: dict[str, str] = {}
    what = ""
    for line in reasons.splitlines():
        before, colon, keys = line.rpartition(": ")
        what = before.strip() if colon else what
        found |= dict.fromkeys(keys.split(), what)
    return found


def model(keys: Keys, *names: str) -> str | None:
    """Read the model's name; a name of code, which an estimate would run, is refused."""
    found = keys.text(*names)
    if found is not None and ":" in found:
        key = next(name for name in names if keys.data.get(name))
        raise keys.error(key, "is no model of the hub or folder", "a recipe cannot name code")
    return found


def optimizer(keys: Keys, loop: str, *names: str) -> str | None:
    """Read the optimizer's name; one that memcalc does not know is refused.

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


def lora(keys: Keys, rank: int | None, targets: Any, dropout: Any) -> str:
    """Write adapters as a plan has them; ``targets`` is ``all-linear`` or a list of names.

    Raises:
        UsageError: a target is a pattern, or the dropout is no share.
    """
    names = [targets] if isinstance(targets, str) else list(targets)
    if not all(isinstance(one, str) and one.replace("_", "").replace(".", "").replace("-", "")
               .isalnum() for one in names):  # fmt: skip
        shown = str(names[0])[:40]
        raise UsageError(
            f"{keys.file}: the LoRA target {shown!r} is a pattern: list modules by their names."
        )
    text = f"r={rank or 8},target={'+'.join(names)}"
    try:
        share = float(dropout or 0)
    except (TypeError, ValueError):
        share = -1.0
    if not 0 <= share < 1:
        raise UsageError(f"{keys.file}: a LoRA dropout of {dropout!r} is no share from 0 to 1.")
    return f"{text},dropout={share:.9f}".rstrip("0") if share else text
