"""Explains a plan: one run of it, and one of each change that is tried; its part of a report."""

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec.structs import replace

from memcalc.advice.explain.layers import layers
from memcalc.advice.explain.peak import at_end, moments
from memcalc.advice.explain.records import Explanation, PeakContents
from memcalc.advice.explain.timeline import Timeline, timeline
from memcalc.advice.remedies.records import figures, fitting, within
from memcalc.advice.remedies.search import advise
from memcalc.advice.remedies.trials import Trials
from memcalc.catalog.plan import make
from memcalc.errors import MemcalcError, UsageError
from memcalc.estimation.estimate import Traced, Tracer
from memcalc.estimation.question import code_in
from memcalc.records.fields import version_changes
from memcalc.records.plan import Plan
from memcalc.records.prediction import Prediction
from memcalc.units import parse_bytes

_FIGURES = ("peak", "phases", "components")


class Chapter(msgspec.Struct, frozen=True, kw_only=True):
    """One plan in a report."""

    prediction: Prediction
    peak: PeakContents | None = None
    line: Timeline | None = None
    notes: tuple[str, ...] = ()
    """What a reader must know, such as that the trace is newer than the figures."""


def chapter(traced: Traced, *, depth: int | None = None) -> Chapter:
    """What there is to show of a plan that was just traced."""
    prediction, plan = traced.prediction, traced.prediction.plan
    found = moments(traced.trace, plan, depth=depth)
    return Chapter(
        prediction=prediction,
        peak=found[prediction.peak.phase],
        line=timeline(traced.trace, plan),
    )


def again(saved: Prediction, tracer: Tracer, *, depth: int | None = None) -> Chapter:
    """A saved prediction with the trace it lacks: from the cache, or traced again.

    The figures stay those that were saved; where the trace says something else, a note says so,
    and the parts that need the trace are left out.
    """
    found: Chapter | str
    # Of a command the trace is kept; it is never run again.
    code = code_in(saved.plan) if not saved.plan.command else None
    if saved.method != "trace":
        found = "closed forms answered: there is no timeline"
    elif code is not None:
        found = f"no timeline: {code} is Python code, and a file does not run code"
    else:
        found = _anew(saved, tracer, depth)
    return Chapter(prediction=saved, notes=(found,)) if isinstance(found, str) else found


def _anew(saved: Prediction, tracer: Tracer, depth: int | None) -> Chapter | str:
    """A saved prediction with the trace of a new run, or why there is none."""
    try:
        answer = tracer.trace(saved.plan)
    except MemcalcError as error:
        return f"no timeline: {error}"
    fresh, differing = (
        answer.prediction,
        version_changes(saved.versions, answer.prediction.versions),
    )
    versions = "; ".join(differing)
    if any(getattr(fresh, name) != getattr(saved, name) for name in _FIGURES):
        why = f" ({versions})" if differing else ""
        return f"no timeline: a new run of this plan gives other figures than the saved ones{why}"
    others = f", with other versions ({versions})" if differing else ""
    note = f"the timeline is from a new run{others}; its figures equal the saved ones"
    return replace(chapter(answer, depth=depth), prediction=saved, notes=(note,))


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
    plan = make({"model": model, **settings})
    return explain_plan(plan, depth=depth, remedies=remedies, under=limit, use_cache=use_cache)


def explain_plan(
    plan: Plan,
    *,
    depth: int | None = None,
    remedies: bool = True,
    under: int | None = None,
    use_cache: bool = True,
    seen: Callable[[Explanation], None] = lambda so_far: None,
) -> Explanation:
    """Explain one plan, as ``explain`` does; ``seen`` is told whenever there is more.

    Raises:
        UsageError: the question cannot be understood.
        EstimateError: the plan cannot be traced.
    """
    for name, least in (("depth", depth), ("under", under)):
        if least is not None and least < 1:
            raise UsageError(f"{name} = {least} leaves nothing: type 1 or more.")
    with Tracer(use_cache=use_cache, workers=None, counted=True) as tracer:
        traced = tracer.trace(plan)
        found = _explained(traced, depth)
        seen(found)
        if plan.command:
            from memcalc.advice.explain import scripts

            if not remedies:
                return found
            told = tuple(scripts.in_the_code(found.peak, found.prediction.plan))
            return replace(found, options=tuple(scripts.remedies(traced)), in_the_code=told)
        goal = within(under, found.figures) if under is not None else None
        if goal is None and remedies:
            goal = fitting(found.figures)
        options, search = advise(
            Trials(traced, tracer),
            goal,
            by_itself=remedies,
            seen=lambda options: seen(replace(found, options=options)),
        )
    return replace(found, options=options, search=search)


def _explained(traced: Traced, depth: int | None) -> Explanation:
    by_phase = moments(traced.trace, traced.prediction.plan, depth=depth)
    peak = by_phase.pop(traced.prediction.peak.phase)
    return Explanation(
        prediction=traced.prediction,
        figures=figures(traced.prediction),
        peak=peak,
        others=tuple(sorted(by_phase.values(), key=lambda moment: -moment.requested)),
        end=at_end(traced.trace, traced.prediction.plan, depth=depth),
        layers=layers(traced.trace.inventory),
    )
