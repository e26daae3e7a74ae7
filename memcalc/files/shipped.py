"""Reads the shipped configs, inside the installed package or beside it in a checkout."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from memcalc.errors import UsageError
from memcalc.files import untrusted_values

T = TypeVar("T")
_PACKAGE = Path(__file__).resolve().parent.parent


def configs() -> Path:
    """Return the folder of shipped ``configs``, installed or in the checkout."""
    installed = _PACKAGE / "configs"
    return installed if installed.is_dir() else _PACKAGE.parent / "configs"


def read(name: str, made: Callable[[Any], T]) -> T:
    """Read a shipped TOML or JSON file and convert its values by ``made``.

    Raises:
        UsageError: the file is missing or damaged.
    """
    path = configs() / name
    hint = "install memcalc again"
    try:
        return made(
            untrusted_values.toml(path)
            if path.suffix == ".toml"
            else untrusted_values.json(path, hint=hint)
        )
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        why = f"{type(error).__name__}: {untrusted_values.reason(error)}"
        raise UsageError(f"{path} is damaged ({why}): {hint}.") from None
