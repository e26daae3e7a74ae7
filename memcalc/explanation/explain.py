"""From a plan to its explanation: one trace of it, and one of every change that is tried."""

from __future__ import annotations

from typing import Any

import msgspec

from memcalc.catalog.plan import make
from memcalc.errors import MemcalcError, UsageError
from memcalc.estimation.estimate import Traced, Tracer
from memcalc.explanation.peak import moments
from memcalc.explanation.records import Explanation
from memcalc.records.plan import Plan
from memcalc.remedies.records import Figures, Option, Search
from memcalc.remedies.search import needed, search
from memcalc.remedies.table import candidates
from memcalc.remedies.trials import Laboratory, figures
from memcalc.units import parse_bytes


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What an explanation shall hold."""

    depth: int | None = None
    """Names of a module's path to keep; ``None``: all."""
    remedies: bool = True
    under: int | None = None
    """Find a plan that needs no more bytes; ``None``: as much as the plan's GPU has."""
    use_cache: bool = True


def explain(
    model: str,
    *,
    under: str | int | None = None,
    depth: int | None = None,
    remedies: bool = True,
    use_cache: bool = True,
    **settings: Any,
) -> Explanation:
    """Say what is alive at the peak of a training run, why, and what would need less.

    Args:
        model: as for ``memcalc.estimate``.
        under: bytes, or a size such as ``"15 GiB"``: find the cheapest plan that needs no more.
            Where a GPU is named and the plan does not fit it, its memory is the limit.
        depth: cut modules' paths to so many names.
        remedies: estimate changed plans.
        use_cache: keep and reuse traces on disk.
        **settings: fields of ``Plan``.

    Raises:
        UsageError: the question cannot be understood.
        EstimateError: the plan cannot be traced.
    """
    limit = parse_bytes(under) if isinstance(under, str) else under
    wish = Wish(depth=depth, remedies=remedies, under=limit, use_cache=use_cache)
    return explain_plan(make({"model": model, **settings}), wish)


def explain_plan(plan: Plan, wish: Wish) -> Explanation:
    """Explain one plan.

    Raises:
        UsageError: the question cannot be understood.
        EstimateError: the plan cannot be traced.
    """
    for name, least in (("depth", wish.depth), ("under", wish.under)):
        if least is not None and least < 1:
            raise UsageError(f"{name} = {least} leaves nothing: type 1 or more.")
    with Tracer(use_cache=wish.use_cache) as tracer:
        traced = tracer.trace(plan)
        if isinstance(traced, MemcalcError):
            raise traced
        by_phase = moments(traced.trace, plan, depth=wish.depth)
        peak = by_phase.pop(traced.prediction.peak.phase)
        before = figures(traced)
        options, found = _remedies(plan, traced, before, wish, tracer)
    return Explanation(
        prediction=traced.prediction,
        figures=before,
        peak=peak,
        others=tuple(sorted(by_phase.values(), key=lambda moment: -moment.requested)),
        options=options,
        search=found,
    )


def _order(option: Option, before: Figures) -> int:
    saved = option.trial.saved(before, "reserved" if before.peak.reserved else "requested")
    return -saved if saved is not None else 1 << 60


def _remedies(
    plan: Plan, traced: Traced, before: Figures, wish: Wish, tracer: Tracer
) -> tuple[tuple[Option, ...], Search | None]:
    rows = candidates(plan, traced.trace)
    laboratory = Laboratory(plan, tracer)
    options: list[Option] = []
    if wish.remedies:
        options = [Option(remedy=row, trial=laboratory.try_out([row])) for row in rows]
        options.sort(key=lambda option: _order(option, before))
    limit = wish.under
    if limit is None and wish.remedies and before.fit is not None:
        limit = before.fit.capacity if needed(before) > before.fit.capacity else None
    found = search(laboratory, before, rows, limit) if limit is not None else None
    return tuple(options), found
