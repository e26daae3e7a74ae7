"""Finds changes to a plan that make it fit a device."""

from __future__ import annotations

from msgspec.structs import replace

from memcalc.advice.fit.records import FitAnswer, Probe
from memcalc.advice.remedies.advice import advise
from memcalc.advice.remedies.goals import fitting
from memcalc.advice.remedies.records import Option
from memcalc.advice.remedies.trials import Trials
from memcalc.errors import MemcalcError
from memcalc.estimation import fits
from memcalc.estimation.estimate import Tracer
from memcalc.records.prediction import FitVerdict


def with_settings(answer: FitAnswer, memory: int | None, tracer: Tracer) -> FitAnswer:
    """Try every remedy on the plan, and the cheapest of them together where it does not fit.

    Raises:
        MemcalcError: the plan itself cannot be traced.
    """
    traced = tracer.trace(answer.plan)
    if isinstance(traced, MemcalcError):
        raise traced
    trials = Trials(traced, tracer, memory)
    before = trials.before
    assert before.fit is not None
    advice = advise(trials, fitting(before))
    made = sum(option.trial.figures is not None for option in advice.options) + 1
    return replace(
        answer,
        here=Probe(batch=before.plan.batch, seq=traced.trace.seq, fit=before.fit, traced=True),
        before=before,
        settings=tuple(sorted(advice.options, key=_order)),
        search=advice.search,
        traces=made + (len(advice.search.trials) if advice.search is not None else 0),
        assumptions=traced.trace.assumptions,
        uncounted=traced.trace.uncounted,
    )


def _order(option: Option) -> tuple[int, int, int]:
    """What fits first, then what costs least, then what needs least."""
    figures = option.trial.figures
    if figures is None or figures.fit is None:
        return 2, option.remedy.rank, 0
    unsure = fits.verdict(figures.fit, figures.context) is not FitVerdict.FITS
    return int(unsure), option.remedy.rank, figures.fit.needed
