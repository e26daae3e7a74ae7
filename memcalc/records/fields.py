"""Declarations of a plan's fields: type, default and help.

A setting is written in a file or in Python as a value, and on the command line as text. Either way
it is checked against the declared type, so what is refused is refused everywhere in the same words.
"""

import shlex
from collections.abc import Mapping, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
from msgspec import Meta

from memcalc.errors import SettingError
from memcalc.records.plan import Plan
from memcalc.records.values import checked, plain, refused, scalar, text_of, typed

_ARGUMENT = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_]+$")]


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """One field of ``Plan``."""

    name: str
    type: Any
    """What a setting is checked against: without ``None``, and a table where pairs are held."""
    default: Any
    """``None`` also where there is none."""
    group: str
    """The heading that its option stands under in help."""
    words: str
    """What it is, in a sentence."""
    otherwise: str
    """What holds where the setting is left out; empty: nothing worth saying."""
    option: str | None
    """Name on the command line, without the dashes before it; the model's is an argument, and
    ``None`` what a verb of its own takes."""
    typed: str
    """How it is typed there, in a sentence; empty: as anybody would think."""

    @property
    def kind(self) -> type:
        """Python's type of one value: bool, int, float or str."""
        return plain(self.type)

    @property
    def is_table(self) -> bool:
        """It holds names and their values."""
        return get_origin(self.type) is dict

    @property
    def repeats(self) -> bool:
        """On the command line it is given again for every further value."""
        return isinstance(self.default, tuple)

    @property
    def choices(self) -> tuple[str, ...]:
        """All values there are; empty where they cannot be listed."""
        return get_args(self.type) if get_origin(self.type) is Literal else ()

    @property
    def help(self) -> str:
        """What it is, its choices and its default, in sentences."""
        parts = [self.words]
        parts += [f"One of {', '.join(self.choices)}."] if self.choices else []
        parts += [f"Default: {self.otherwise}."] if self.otherwise else []
        return " ".join(parts)

    def check(self, value: Any) -> Any:
        """Take a setting from a file or from Python and return it as the plan holds it.

        Raises:
            SettingError: it is of another type, out of range, or none of the choices.
        """
        if self.is_table:
            return tuple(checked(self.name, self.type, self._table(value)).items())
        alone = self.repeats and isinstance(value, str)
        return checked(self.name, self.type, (value,) if alone else value)

    def read(self, given: str | tuple[str, ...] | bool) -> Any:
        """Take a setting from the command line: its text, all texts where it repeats, or a switch.

        Raises:
            SettingError: it is not understood.
        """
        if self.is_table and isinstance(given, tuple):
            return self.check(tuple(self._pair(text) for text in given))
        if isinstance(given, str) and not self.repeats:
            return typed(self.name, self.type, given)
        return self.check(given)

    def write(self, value: Any) -> list[str]:
        """The words on the command line that ``read`` takes for this value."""
        if self.kind is bool:
            return [f"--{self.option}" if value else f"--no-{self.option}"]
        if self.is_table:
            value = [f"{key}={text_of(item)}" for key, item in value]
        values = value if self.repeats else [value]
        return [word for item in values for word in (f"--{self.option}", str(item))]

    def _table(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return dict(value)
        if not isinstance(value, tuple) or not all(
            isinstance(item, list | tuple) and len(item) == 2 and isinstance(item[0], str)
            for item in value
        ):
            raise refused(self.name, self.type, value)
        twice = [key for key, _ in value if [key for key, _ in value].count(key) > 1]
        if twice:
            raise SettingError(self.name, f"{self.name} names {twice[0]} twice: name it once.")
        return dict(value)

    def _pair(self, text: str) -> tuple[str, Any]:
        key, equals, value = text.partition("=")
        if not equals:
            message = f"{self.name} = {text!r} is not understood: write key=value."
            raise SettingError(self.name, message)
        return key.strip(), scalar(value)


def changed_settings(plan: Plan) -> dict[str, Any]:
    """The settings of a plan that are not left at their defaults, as its fields hold them."""
    settings = msgspec.structs.asdict(plan)
    return {name: value for name, value in settings.items() if value != FIELDS[name].default}


def declared(kind: type[Plan]) -> dict[str, Field]:
    """What a class declares of its own fields, by name and in order."""
    defaults = {field.name: field.default for field in msgspec.structs.fields(kind)}
    return {
        name: _field(name, annotation, defaults[name])
        for name, annotation in kind.__annotations__.items()
    }


def _field(name: str, annotation: Any, default: Any) -> Field:
    kind, *metas = get_args(annotation)
    told = next(meta for meta in metas if meta.extra is not None)
    limits = [meta for meta in metas if meta is not told]
    default = None if default is msgspec.NODEFAULT else default
    named = default if isinstance(default, str | int) and not isinstance(default, bool) else ""
    again = "Repeatable." if isinstance(default, tuple) else ""
    return Field(
        name=name,
        type=_written(Annotated[(kind, *limits)] if limits else kind),
        default=default,
        group=told.extra["group"],
        words=told.description,
        otherwise=told.extra["otherwise"] or ("yes" if default is True else str(named)),
        option=name.replace("_", "-") if told.extra["option"] == "" else told.extra["option"],
        typed=" ".join(filter(None, (told.extra["typed"], again))),
    )


def _written(kind: Any) -> Any:
    """From the type that a plan holds to the one that settings are checked against."""
    if get_origin(kind) in (Union, UnionType):
        kind = Union[tuple(part for part in get_args(kind) if part is not NoneType)]  # noqa: UP007
    item = get_args(kind)[0] if get_origin(kind) is tuple else None
    if get_origin(item) is tuple:
        return dict[_ARGUMENT, get_args(item)[1]]  # type: ignore[misc]
    return kind


FIELDS = declared(Plan)


def options(plan: Plan) -> str:
    """The model and the batch, and every option that is not left at its default."""
    told = changed_settings(plan) | ({} if plan.inputs else {"batch": plan.batch})
    words = [plan.model]
    for name, field in FIELDS.items():
        if name in told and name != "model" and field.option is not None:
            words += field.write(told[name])
    return shlex.join(words)


COMPARED = {
    "optim": "optimizer",
    "precision": "precision",
    "batch": "batch",
    "seq": "tokens",
    "gpu": "GPU",
}
"""Settings that take several values, and what a column of plans side by side calls them."""


def compared(plans: Sequence[Plan]) -> list[str]:
    """Return the settings that differ between plans; the optimizer where none does."""
    found = [name for name in COMPARED if len({getattr(plan, name) for plan in plans}) > 1]
    return found or ["optim"]


def plan_changes(before: Mapping[str, object], now: Mapping[str, object]) -> list[str]:
    """How a plan differs from another, a setting each, such as ``batch 8 -> 16``."""
    shown = []
    for name, field in FIELDS.items():
        old, new = before.get(name, field.default), now.get(name, field.default)
        if old != new:
            shown.append(f"{name} {_plain(old)} -> {_plain(new)}")
    return shown


def version_changes(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Each library whose version is another one, with both versions."""
    return [
        f"{name} {before.get(name, 'not installed')} then, {now.get(name, 'not installed')} now"
        for name in sorted(before.keys() | now.keys())
        if before.get(name) != now.get(name)
    ]


def _plain(value: object) -> str:
    return "default" if value in (None, "", [], ()) else str(value)
