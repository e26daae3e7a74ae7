"""Declarations of a plan's fields: type, default and help.

A setting is a value in a file or in Python, and a text on the command line. Either is checked
against the declared type, so a refusal has the same words everywhere.
"""

import ast
import inspect
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import Meta

from memcalc.errors import SettingError
from memcalc.records.plan import Plan
from memcalc.records.values import check_value, format_scalar, parse_value, plain, refusal, scalar

F = TypeVar("F", bound=Callable[..., Any])
_ARGUMENT = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_]+$")]


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """A field of ``Plan``."""

    name: str
    type: Any
    """The type of a setting: without ``None``, and a table where the plan holds pairs."""
    default: Any
    """``None`` also where the field has no default."""
    group: str
    """The heading of its option in help."""
    words: str
    """Its description, a sentence."""
    otherwise: str
    """The default in words; empty: not worth a sentence."""
    option: str | None
    """Name on the command line, without dashes; the model's is an argument; ``None``: only some
    verbs take it."""
    typed: str
    """How it is typed there, a sentence; empty: as usual."""

    @property
    def kind(self) -> type:
        """The Python type of one value: bool, int, float or str."""
        return plain(self.type)

    @property
    def is_table(self) -> bool:
        """True if it holds names and their values."""
        return get_origin(self.type) is dict

    @property
    def repeats(self) -> bool:
        """True if its option is repeated for every further value."""
        return isinstance(self.default, tuple)

    @property
    def choices(self) -> tuple[str, ...]:
        """The allowed values, or () if they cannot be listed."""
        return get_args(self.type) if get_origin(self.type) is Literal else ()

    @property
    def help(self) -> str:
        """The description, the choices and the default, in sentences."""
        parts = [self.words]
        parts += [f"Choices: {', '.join(self.choices)}."] if self.choices else []
        parts += [f"Default: {self.otherwise}."] if self.otherwise else []
        return " ".join(parts)

    def check(self, value: Any) -> Any:
        """Convert a value from a file or from Python to the type that the plan holds.

        Raises:
            SettingError: it has another type, is out of range, or is none of the choices.
        """
        if self.is_table:
            return tuple(check_value(self.name, self.type, self._pairs_to_dict(value)).items())
        alone = self.repeats and isinstance(value, str)
        return check_value(self.name, self.type, (value,) if alone else value)

    def read(self, given: str | tuple[str, ...] | bool) -> Any:
        """Convert a command-line value (text, tuple of texts or bool) to the plan's type.

        Raises:
            SettingError: it is not understood.
        """
        if self.is_table and isinstance(given, tuple):
            return self.check(tuple(self._read_pair(text) for text in given))
        if isinstance(given, str) and not self.repeats:
            return parse_value(self.name, self.type, given)
        return self.check(given)

    def write(self, value: Any) -> list[str]:
        """Return the command-line words that set this value."""
        if self.kind is bool:
            return [f"--{self.option}" if value else f"--no-{self.option}"]
        if self.is_table:
            value = [f"{key}={format_scalar(item)}" for key, item in value]
        values = value if self.repeats else [value]
        return [word for item in values for word in (f"--{self.option}", str(item))]

    def _pairs_to_dict(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return dict(value)
        if not isinstance(value, tuple) or not all(
            isinstance(item, list | tuple) and len(item) == 2 and isinstance(item[0], str)
            for item in value
        ):
            raise refusal(self.name, self.type, value)
        twice = [key for key, _ in value if [key for key, _ in value].count(key) > 1]
        if twice:
            raise SettingError(self.name, f"{self.name} names {twice[0]} twice: name it once.")
        return dict(value)

    def _read_pair(self, text: str) -> tuple[str, Any]:
        key, equals, value = text.partition("=")
        if not equals:
            message = f"{self.name} = {text!r} is not understood: write key=value."
            raise SettingError(self.name, message)
        return key.strip(), scalar(value)


def changed_settings(plan: Plan) -> dict[str, Any]:
    """Return the settings of a plan that differ from their defaults."""
    settings = msgspec.structs.asdict(plan)
    return {name: value for name, value in settings.items() if value != FIELDS[name].default}


def name_settings(function: F) -> F:
    """Give a function with ``**settings`` a signature that names the plan's fields."""
    taken = inspect.signature(function).parameters
    own = [one for one in taken.values() if one.kind != one.VAR_KEYWORD]
    left = [field for name, field in FIELDS.items() if name not in (*taken, "command")]
    settings = [
        inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=field.type
        )
        for field in left
    ]
    function.__signature__ = inspect.Signature([*own, *settings])  # type: ignore[attr-defined]
    return function


def declare_fields(kind: type[Plan]) -> dict[str, Field]:
    """Return the declarations of the plan's fields, by name."""
    defaults = {field.name: field.default for field in msgspec.structs.fields(kind)}
    words = _read_field_docs(kind)
    return {
        name: _make_field(name, words.get(name, ""), annotation, defaults[name])
        for name, annotation in kind.__annotations__.items()
    }


def _read_field_docs(kind: type[Plan]) -> dict[str, str]:
    """Return the docstring below each field of a class; empty without its source."""
    try:
        module = ast.parse(inspect.getsource(sys.modules[kind.__module__]))
    except OSError:
        return {}
    classes = {one.name: one for one in module.body if isinstance(one, ast.ClassDef)}
    return {
        field.target.id: inspect.cleandoc(str(doc.value.value)).replace("\n", " ")
        for field, doc in pairwise(classes[kind.__name__].body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(doc, ast.Expr) and isinstance(doc.value, ast.Constant)
    }


def _make_field(name: str, words: str, annotation: Any, default: Any) -> Field:
    kind, *metas = get_args(annotation)
    about = next(meta for meta in metas if meta.extra is not None)
    limits = [meta for meta in metas if meta is not about]
    default = None if default is msgspec.NODEFAULT else default
    named = default if isinstance(default, str | int) and not isinstance(default, bool) else ""
    again = "Repeatable." if isinstance(default, tuple) else ""
    return Field(
        name=name,
        type=_setting_type(Annotated[(kind, *limits)] if limits else kind),
        default=default,
        group=about.extra["group"],
        words=words,
        otherwise=about.extra["otherwise"] or ("yes" if default is True else str(named)),
        option=name.replace("_", "-") if about.extra["option"] == "" else about.extra["option"],
        typed=" ".join(filter(None, (about.extra["typed"], again))),
    )


def _setting_type(kind: Any) -> Any:
    """Return the type that settings are checked against, from the type that a plan holds."""
    if get_origin(kind) in (Union, UnionType):
        kind = Union[tuple(part for part in get_args(kind) if part is not NoneType)]  # noqa: UP007
    item = get_args(kind)[0] if get_origin(kind) is tuple else None
    if get_origin(item) is tuple:
        return dict[_ARGUMENT, get_args(item)[1]]  # type: ignore[misc]
    return kind


FIELDS = declare_fields(Plan)


def options(plan: Plan) -> str:
    """Return a plan as command-line text: model, batch, and options that are not defaults."""
    if plan in _typed:
        return _typed[plan]
    batch = {} if plan.inputs else {"batch": plan.batch}
    return _write_options({**changed_settings(plan), **batch, "model": plan.model})


def keep_options(plan: Plan, settings: Mapping[str, Any]) -> None:
    """Let ``options`` return these settings, which name the files that the plan was read from."""
    _typed[plan] = _write_options({"model": settings.get("recipe"), **settings})


_typed: dict[Plan, str] = {}


def _write_options(settings: Mapping[str, Any]) -> str:
    words = [str(settings["model"])]
    for name, field in FIELDS.items():
        if name in settings and settings[name] != words[0] and field.option is not None:
            words += field.write(settings[name])
    return shlex.join(words)


COMPARED = {
    "optim": "optimizer",
    "precision": "precision",
    "batch": "batch",
    "seq": "tokens",
    "gpu": "GPU",
}
"""Settings that take several values, and their names as columns of a comparison."""


def varied_settings(plans: Sequence[Plan]) -> list[str]:
    """Return the names of settings that differ between plans; ``optim`` if none does."""
    found = [name for name in COMPARED if len({getattr(plan, name) for plan in plans}) > 1]
    return found or ["optim"]


def plan_changes(before: Mapping[str, object], now: Mapping[str, object]) -> list[str]:
    """Return the changed settings of a plan, such as ``batch 8 -> 16``."""
    shown = []
    for name, field in FIELDS.items():
        old, new = before.get(name, field.default), now.get(name, field.default)
        if old != new:
            shown.append(f"{name} {_show_value(old)} -> {_show_value(new)}")
    return shown


def version_changes(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return a phrase for each library whose version differs."""
    return [
        f"{name} {before.get(name, 'not installed')} then, {now.get(name, 'not installed')} now"
        for name in sorted(before.keys() | now.keys())
        if before.get(name) != now.get(name)
    ]


def _show_value(value: object) -> str:
    return "default" if value in (None, "", [], ()) else str(value)
