"""Shell completion for models, optimizers and GPUs."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import click

from memcalc.records.fields import Field

Offer = Callable[[click.Context, click.Parameter, str], list[str]]


def models(_: click.Context, __: click.Parameter, begun: str) -> list[str]:
    """Names of the bundled models."""
    from memcalc.catalog import models as catalog

    return _beginning(catalog.bundled(), begun)


def gpus(_: click.Context, __: click.Parameter, begun: str) -> list[str]:
    """Names of all GPUs, as they are typed without quotes; a number needs no RTX before it."""
    from memcalc.catalog import gpus as catalog

    names = [gpu.name.replace(" ", "").lower() for gpu in catalog.table()]
    if begun[:1].isdigit():
        names = [name.removeprefix("rtx").removeprefix("gtx") for name in names]
    return _beginning(names, begun)


def optimizers(_: click.Context, __: click.Parameter, begun: str) -> list[str]:
    """Names of all optimizers; of a list, of its last."""
    from memcalc import registry

    *first, last = begun.split(",")
    before = "".join(f"{name}," for name in first)
    return [f"{before}{name}" for name in _beginning((r.name for r in registry.rows()), last)]


def of(field: Field) -> Offer | None:
    """What completes an option of a plan; ``None``: nothing can."""
    if field.name in _BY_NAME:
        return _BY_NAME[field.name]
    if field.choices:
        return lambda _, __, begun: _beginning(field.choices, begun)
    return None


_BY_NAME = {"gpu": gpus, "optim": optimizers}


def _beginning(names: Iterable[str], begun: str) -> list[str]:
    return [name for name in names if name.lower().startswith(begun.lower())]
