"""Explains a plan: one run of it, and one of each change that is tried."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec.structs import replace

from memcalc.advice.explain.layers import layers
from memcalc.advice.explain.peak import at_end, moments
from memcalc.advice.explain.records import Explanation
from memcalc.advice.remedies.goals import fitting, under
from memcalc.advice.remedies.records import figures
from memcalc.advice.remedies.search import advise
from memcalc.advice.remedies.trials import Trials
from memcalc.catalog.plan import make
from memcalc.errors import UsageError
from memcalc.estimation.estimate import Traced, Tracer
from memcalc.records.plan import Plan
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


def explain_plan(
    plan: Plan, wish: Wish, seen: Callable[[Explanation], None] = lambda so_far: None
) -> Explanation:
    """Explain one plan.

    Args:
        plan: what is trained.
        wish: what the explanation shall hold.
        seen: told what is known so far, each time that there is more.

    Raises:
        UsageError: the question cannot be understood.
        EstimateError: the plan cannot be traced.
    """
    for name, least in (("depth", wish.depth), ("under", wish.under)):
        if least is not None and least < 1:
            raise UsageError(f"{name} = {least} leaves nothing: type 1 or more.")
    with Tracer(use_cache=wish.use_cache, workers=None, counted=True, figures=True) as tracer:
        traced = tracer.trace(plan)
        found = _explained(traced, wish)
        seen(found)
        if plan.command:
            from memcalc.advice.explain import scripts

            if not wish.remedies:
                return found
            told = tuple(scripts.in_the_code(found.peak, found.prediction.plan))
            return replace(found, options=tuple(scripts.remedies(traced)), in_the_code=told)
        goal = under(wish.under, found.figures) if wish.under is not None else None
        if goal is None and wish.remedies:
            goal = fitting(found.figures)
        advice = advise(
            Trials(traced, tracer),
            goal,
            by_itself=wish.remedies,
            seen=lambda options: seen(replace(found, options=options)),
        )
    return replace(found, options=advice.options, search=advice.search)


def _explained(traced: Traced, wish: Wish) -> Explanation:
    by_phase = moments(traced.trace, traced.prediction.plan, depth=wish.depth)
    peak = by_phase.pop(traced.prediction.peak.phase)
    return Explanation(
        prediction=traced.prediction,
        figures=figures(traced.prediction),
        peak=peak,
        others=tuple(sorted(by_phase.values(), key=lambda moment: -moment.requested)),
        end=at_end(traced.trace, traced.prediction.plan, depth=wish.depth),
        layers=layers(traced.trace.inventory),
    )
