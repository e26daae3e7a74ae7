"""What an option's text may be: read and refused as the settings of a plan are."""

from __future__ import annotations

from typing import Annotated, Any

import click
from msgspec import Meta

from memcalc.errors import UsageError
from memcalc.records.plan import Method
from memcalc.records.values import plain, typed
from memcalc.units import parse_bytes


class Value(click.ParamType[Any]):
    """A value of a declared type."""

    def __init__(self, kind: Any) -> None:
        """Read values of this type, such as ``Annotated[int, Meta(ge=1, le=8)]``."""
        self._kind = kind
        self.name = {int: "integer", float: "float"}.get(plain(kind), "text")

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The value; a default is one already.

        Raises:
            UsageError: it is of another type, out of range, or none of the choices.
        """
        return typed(_name(param), self._kind, value) if isinstance(value, str) else value


class Size(click.ParamType[int]):
    """Bytes, from a text such as ``10 GiB``."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The bytes.

        Raises:
            UsageError: it is no size, or nothing at all.
        """
        try:
            size = parse_bytes(str(value))
        except UsageError as error:
            raise UsageError(f"{_name(param)}: {error}") from None
        if not size:
            raise UsageError(f"{_name(param)} {value!r} must be more than 0 bytes.")
        return size


def counted(least: int) -> Value:
    """A whole number that is not below this one."""
    return Value(Annotated[int, Meta(ge=least, le=1 << 20)])


TOKENS = Value(Annotated[float, Meta(gt=0, le=1e18)])
SECONDS = Value(Annotated[float, Meta(gt=0, le=1e9)])
SIZE = Size()
METHOD = Value(Method)


def _name(param: click.Parameter | None) -> str:
    return param.opts[0] if param is not None else "the option"
