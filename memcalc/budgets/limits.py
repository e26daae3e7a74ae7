"""From ``limits`` tables to budgets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from memcalc.budgets import sizes
from memcalc.budgets.metrics import COMPONENTS, PER_PARAMETER
from memcalc.budgets.records import Amount, Budget, Rule
from memcalc.budgets.source import Key, Source
from memcalc.catalog import gpus
from memcalc.errors import UsageError, unknown
from memcalc.records.prediction import RUNGS

KEYS = ("peak", *COMPONENTS, PER_PARAMETER, "fits", "margin", "max_growth")


def budgets(source: Source, run: str, tables: list[Key], default: str) -> tuple[Budget, ...]:
    """Read all limits of one run.

    Args:
        source: the file.
        run: its name.
        tables: where limits stand; those of a later table win.
        default: the metric that ``peak`` alone means.

    Raises:
        UsageError: an unknown limit, or one whose value is not understood.
    """
    margin: Amount | None = None
    found: dict[tuple[Rule, str], Budget] = {}
    for table in tables:
        here: set[Any] = set()
        for written, value in _leaves(source.table(table)):
            path = tuple(part.replace("-", "_") for part in written)
            with source.at((*table, *written)):
                if path == ("margin",):
                    _once(here, path, path)
                    margin = sizes.share_or_size(value)
                    continue
                budget = _budget(run, path, value, default)
                _once(here, (budget.rule, budget.metric), path)
                place = source.where((*table, *written))
                found[budget.rule, budget.metric] = replace(budget, where=place)
    return tuple(
        replace(budget, margin=margin) if _has_room(budget) else budget for budget in found.values()
    )


def _once(here: set[Any], limit: Any, path: Key) -> None:
    """Of two limits on one figure in one table, nobody could say which is meant."""
    if limit in here:
        raise UsageError(f"{'.'.join(path)} limits what is limited above already: leave one out.")
    here.add(limit)


def _has_room(budget: Budget) -> bool:
    """A margin is room to spare on the GPU: below a limit of the peak, and below ``fits``."""
    return budget.rule is Rule.FITS or (
        budget.rule is Rule.MAX and budget.metric.startswith("peak.")
    )


def _leaves(table: Mapping[str, Any], path: Key = ()) -> Iterator[tuple[Key, Any]]:
    for key, value in table.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, (*path, key))
        else:
            yield (*path, key), value


def _budget(run: str, path: Key, value: Any, default: str) -> Budget:
    """Read one limit; its place is filled in by the caller."""
    nowhere = Source(path="", data={}).where(())
    if path == ("fits",):
        if not isinstance(value, str):
            raise UsageError(f'fits = {value!r} names no GPU: write one, as fits = "t4".')
        gpu = gpus.find(value).name
        return Budget(run=run, rule=Rule.FITS, metric="fits", gpu=gpu, where=nowhere)
    if path[0] == "max_growth":
        metric = _metric(path[1:] or ("peak",), default)
        amount, rule = sizes.share_or_size(value), Rule.GROWTH
    else:
        metric, rule = _metric(path, default), Rule.MAX
        per_parameter = path[0] == PER_PARAMETER
        amount = sizes.per_parameter(value) if per_parameter else sizes.size(value)
    return Budget(run=run, rule=rule, metric=metric, amount=amount, where=nowhere)


def _metric(path: Key, default: str) -> str:
    head, *rest = path
    if head == "peak":
        return default if not rest else f"peak.{_one(rest, RUNGS, 'rung')}"
    if head == PER_PARAMETER:
        return head if not rest else f"{head}.{_one(rest, COMPONENTS, 'component')}"
    if head not in COMPONENTS or rest:
        raise unknown("limit", ".".join(path), KEYS, hint=f"limits are {', '.join(KEYS)}.")
    return head


def _one(rest: list[str], known: tuple[str, ...], kind: str) -> str:
    if len(rest) > 1 or rest[0] not in known:
        raise unknown(kind, ".".join(rest), known, hint=f"choose one of {', '.join(known)}.")
    return rest[0]
