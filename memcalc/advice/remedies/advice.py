"""Estimates every remedy of a plan alone, and the cheapest combination that reaches a goal."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from memcalc.advice.remedies.goals import Goal
from memcalc.advice.remedies.records import Option, Search
from memcalc.advice.remedies.search import search
from memcalc.advice.remedies.table import candidates
from memcalc.advice.remedies.trials import Trials

Seen = Callable[[tuple[Option, ...]], None]
"""Told of all options that are known so far, each time that there is one more."""


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """What would need less memory."""

    options: tuple[Option, ...] = ()
    """The largest saving first; what could not be tried is last, with its reason."""
    search: Search | None = None
    """``None``: there was no goal."""


def advise(
    trials: Trials,
    goal: Goal | None,
    *,
    by_itself: bool = True,
    seen: Seen = lambda options: None,
) -> Advice:
    """Try what there is.

    Args:
        trials: of the plan that is to need less.
        goal: what a combination shall reach; ``None``: none is looked for.
        by_itself: try every remedy by itself as well.
        seen: told as soon as something is known.
    """
    before = trials.before
    rows = candidates(before.plan)
    options: tuple[Option, ...] = ()
    for option in trials.options(rows) if by_itself else ():
        options = tuple(sorted((*options, option), key=trials.saving))
        seen(options)
    failed = {option.remedy.key for option in options if option.trial.error is not None}
    found = None
    if goal is not None:
        usable = [remedy for remedy in rows if remedy.key not in failed]
        found = search(trials, before, usable, goal, trials.inventory)
    return Advice(options=options, search=found)
