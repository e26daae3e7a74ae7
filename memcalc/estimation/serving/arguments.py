"""Settings of a serving engine, by its own names."""

from __future__ import annotations

from typing import Any

import msgspec

from memcalc.errors import SettingError
from memcalc.records.plan import Plan


class Argument(msgspec.Struct, frozen=True):
    """A setting that changes what is reserved."""

    kind: type
    least: float
    most: float = float("inf")


SHARE = Argument(float, 0.01, 1.0)
COUNT = Argument(int, 1)
CHOICE = Argument(str, 0)
SWITCH = Argument(bool, 0, 1)
CACHE_TYPES = {"auto": None, "bfloat16": 2, "float16": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}
"""Bytes of an element of the cache; ``auto``: those of the weights'."""


def read(plan: Plan, known: dict[str, Argument]) -> dict[str, Any]:
    """The engine's arguments of a plan, checked.

    Raises:
        SettingError: one is unknown, or of the wrong type or size.
    """
    return {name: _checked(plan, name, value, known) for name, value in plan.engine_args}


def element(plan: Plan, given: dict[str, Any], own: int, name: str) -> int:
    """Bytes of an element of the cache.

    Raises:
        SettingError: a type that is not known.
    """
    said = given.get(name, "auto")
    if said not in CACHE_TYPES:
        raise SettingError(
            "engine_args",
            f"--engine-arg {name}={said}: {plan.engine} is answered for {', '.join(CACHE_TYPES)}.",
        )
    return CACHE_TYPES[said] or own


def _checked(plan: Plan, name: str, value: Any, known: dict[str, Argument]) -> Any:
    if name not in known:
        raise SettingError(
            "engine_args",
            f"--engine-arg {name} is not one that memcalc reads for {plan.engine}: those are "
            f"{', '.join(known)}.",
        )
    wanted = known[name]
    if wanted.kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if type(value) is not wanted.kind:
        raise SettingError(
            "engine_args", f"--engine-arg {name}={value} is no {_WORDS[wanted.kind]}."
        )
    if isinstance(value, int | float) and not wanted.least <= value <= wanted.most:
        raise SettingError(
            "engine_args",
            f"--engine-arg {name}={value} is out of range: {wanted.least:g} to {wanted.most:g}.",
        )
    return value


_WORDS = {float: "share", int: "whole number", str: "name", bool: "true or false"}
