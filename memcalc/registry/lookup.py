"""From an optimizer's name and arguments to a choice."""

import functools
import math
import re
from collections.abc import Mapping

from memcalc.errors import UsageError, unknown
from memcalc.imports import is_named
from memcalc.records.plan import Plan
from memcalc.records.values import Scalar, scalar
from memcalc.registry.row import NUMBERS, SWITCHES, Choice, Row
from memcalc.registry.rows import rows

_DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+")


@functools.cache
def _index_by_name(loop: str) -> dict[str, Row]:
    # Earlier rows win: adafactor and rmsprop are torch's, but for the Trainer.
    names = {_normalize(name): row for row in rows() for name in row.loop_aliases.get(loop, ())}
    for row in rows():
        for name in (row.name, *row.aliases):
            names.setdefault(_normalize(name), row)
    return names


@functools.cache
def _index_by_class() -> dict[tuple[str, str], Row]:
    """Return the registry rows by (package, class name)."""
    # Earlier rows win.
    return {_split_class(row.implementation): row for row in reversed(rows())}


def _split_class(name: str) -> tuple[str, str]:
    """Return the package and class of ``package.module.Class`` or ``package.module:Class``."""
    package, _, rest = name.replace(":", ".").partition(".")
    return package, rest.rpartition(".")[2]


def _normalize(name: str) -> str:
    return re.sub(r"[-_ ]", "", name.lower())


def of(plan: Plan) -> Choice:
    """Return the optimizer of a plan, with its arguments checked.

    Raises:
        UsageError: an unknown name or argument, or one the optimizer refuses.
    """
    return find(plan.optim, dict(plan.optim_args), plan.loop)


def find(name: str, args: Mapping[str, Scalar], loop: str = "plain") -> Choice:
    """Return the optimizer with this name, with its arguments checked and defaults filled in.

    Args:
        name: as typed: ``adamw``, ``adam8bit``, a value of transformers' ``OptimizerNames``,
            ``memcalc.adamw_bf16``, or any class: ``package.module.Class``,
            ``package.module:Class`` or ``file.py:Class``.
        args: of its constructor.
        loop: under which it runs: the Trainer means other classes by some names.

    Raises:
        UsageError: an unknown name or argument, or one the optimizer refuses.
    """
    row = _index_by_name(loop).get(_normalize(name)) or _index_by_class().get(_split_class(name))
    if row is None:
        row = _make_foreign_row(name)
    else:
        for key, value in args.items():
            _check_argument(row, name, key, value)
    settled = {**row.defaults, **args}
    refused = row.refuse(settled) if row.refuse is not None else None
    if refused:
        raise UsageError(f"{name}: {refused}.")
    return Choice(name=name, row=row, args=settled, given=dict(args))


def check_precision(choice: Choice, plan: Plan) -> None:
    """Raise UsageError if the optimizer does not train weights of the plan's precision.

    Raises:
        UsageError: it trains weights of another precision.
    """
    wanted = choice.row.precision
    if wanted is not None and plan.precision.removesuffix("+amp") != wanted:
        raise UsageError(
            f"{choice.name} trains {wanted} weights, not those of {plan.precision}: add "
            f"--precision {wanted}, or name another optimizer."
        )


def _check_argument(row: Row, name: str, key: str, value: Scalar) -> None:
    known = (*row.defaults, *row.takes)
    if key not in known:
        hint = f"{name} takes {', '.join(sorted(set(known)))}."
        raise unknown(f"argument of {name}", key, known, hint=hint)
    default = row.defaults.get(key)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if isinstance(default, int) and not isinstance(default, bool) and not number:
        raise UsageError(f"{name}: {key} = {value!r} is not a number.")
    switch = isinstance(default, bool) or (key in SWITCHES and value is not None)
    if switch and not isinstance(value, bool):
        raise UsageError(f"{name}: {key} = {value!r} is not true or false.")
    if key == "optim_bits" and value not in (8, 32):
        raise UsageError(f"{name}: optim_bits is 8 or 32, not {value!r}.")
    if key in NUMBERS and value is not None:
        parts = pair(value) if isinstance(value, str) else (value,) if number else ()
        if not parts or min(parts) < 0 or (key == "betas" and (len(parts) < 2 or max(parts) >= 1)):
            wanted = "two numbers below 1, as 0.9,0.95" if key == "betas" else "a positive number"
            raise UsageError(f"{name}: {key} = {value!r} is not {wanted}.")


def pair(text: str) -> tuple[float, ...]:
    """Parse numbers with commas, such as ``0.9,0.95``; return () for another text."""
    numbers = [scalar(part) for part in text.split(",")]
    found = [float(n) for n in numbers if isinstance(n, int | float) and math.isfinite(n)]
    return tuple(found) if len(found) == len(numbers) else ()


def _make_foreign_row(name: str) -> Row:
    """Return the row of a class outside the registry, whose state only a run shows."""
    if not is_named(name) and not _DOTTED.fullmatch(name):
        hint = (
            "see memcalc list optimizers, or give a class as package.module.Class or file.py:Class."
        )
        raise unknown("optimizer", name, [row.name for row in rows()], hint=hint)
    return Row(
        name=name,
        implementation=name,
        summary="",
        layout=None,
        package="",
        unknown="its class is not in the registry: only a trace of its own code shows its state",
    )
