"""One plan's section of a report: its prediction, timeline and peak."""

from __future__ import annotations

import msgspec

from memcalc.advice.explain.peak import moments
from memcalc.advice.explain.records import PeakContents
from memcalc.advice.explain.timeline import Timeline, timeline
from memcalc.errors import MemcalcError
from memcalc.estimation.estimate import Traced, Tracer
from memcalc.estimation.question import code_in
from memcalc.records.fields import version_changes
from memcalc.records.prediction import Prediction


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
    if saved.method != "trace":
        return Chapter(prediction=saved, notes=("closed forms answered: there is no timeline",))
    # Of a command the trace is kept; it is never run again.
    code = code_in(saved.plan) if not saved.plan.command else None
    if code is not None:
        note = f"no timeline: {code} is Python code, and a file does not run code"
        return Chapter(prediction=saved, notes=(note,))
    try:
        answer = tracer.trace(saved.plan)
    except MemcalcError as error:
        return Chapter(prediction=saved, notes=(f"no timeline: {error}",))
    fresh = answer.prediction
    differing = version_changes(saved.versions, fresh.versions)
    same = (fresh.peak, fresh.phases, fresh.components) == (
        *(saved.peak, saved.phases),
        saved.components,
    )
    if not same:
        why = f" ({'; '.join(differing)})" if differing else ""
        note = f"no timeline: a new run of this plan gives other figures than the saved ones{why}"
        return Chapter(prediction=saved, notes=(note,))
    versions = f", with other versions ({'; '.join(differing)})" if differing else ""
    found = chapter(answer, depth=depth)
    return Chapter(
        prediction=saved,
        peak=found.peak,
        line=found.line,
        notes=(f"the timeline is from a new run{versions}; its figures equal the saved ones",),
    )
