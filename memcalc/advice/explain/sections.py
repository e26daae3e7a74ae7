"""One plan's section of a report: its prediction, timeline and peak."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from memcalc.advice.explain.peak import moments
from memcalc.advice.explain.records import PeakContents
from memcalc.advice.explain.timeline import Timeline, timeline
from memcalc.errors import MemcalcError
from memcalc.estimation.estimate import Traced, Tracer
from memcalc.estimation.question import code_in
from memcalc.records.fields import version_changes
from memcalc.records.prediction import Prediction

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
