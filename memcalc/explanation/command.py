"""A plan as the options that would say the same on the command line."""

from __future__ import annotations

import shlex
from typing import Any

from memcalc.records.plan import Plan


def options(plan: Plan) -> str:
    """The model and the batch, and every option that is not left at its default."""
    parts = [plan.model]
    plain = Plan(model=plan.model)
    for name in Plan.__struct_fields__:
        value = getattr(plan, name)
        told = name == "batch" and not plan.inputs
        if told or value != getattr(plain, name):
            parts += _option(name.replace("_", "-"), value)
    return shlex.join(parts)


def _option(name: str, value: Any) -> list[str]:
    if name == "optim-args":
        return [part for key, item in value for part in ("--optim-arg", f"{key}={_word(item)}")]
    if name == "inputs":
        return [part for item in value for part in ("--input", item)]
    if isinstance(value, tuple):
        return [part for item in value for part in (f"--{name}", item)]
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    return [f"--{name}", str(value)]


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
