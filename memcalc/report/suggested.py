"""Suggestions as blocks and as JSON."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from memcalc.advice.explain.command_line import options
from memcalc.advice.remedies.goals import needed, needed_within
from memcalc.advice.remedies.records import Figures
from memcalc.advice.suggest.records import Suggestion, Suggestions
from memcalc.advice.suggest.speed import UTILISATION
from memcalc.files.artifact import document, encode
from memcalc.report.blocks import Block, Cell, Kind, Line, Size, Table
from memcalc.report.rows import asked_for, fit_words
from memcalc.units import format_bytes, unit_for


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens to train on and the price, where given."""

    tokens: float | None = None
    price: float | None = None
    """Of an hour."""


def blocks(found: Suggestions, work: Work, *, verbose: bool = True) -> Iterator[Block]:
    """What fits, the cheapest first; what does not, and by how much; and what to type."""
    plan, best = found.plan, next(iter(found.fitting), None)
    several = f"{plan.devices} x " if plan.devices > 1 else ""
    gpu = f"{several}{found.gpu} ({format_bytes(found.capacity)})"
    if best is not None and best.figures is not None:
        fit = best.figures.fit
        spare = f", {format_bytes(fit.least_margin)} to spare" if fit is not None else ""
        yield Line(f"fits on {gpu}: {best.way.title}{spare}", Kind.VERDICT)
    elif any(one.tight for one in found.found):
        yield Line(f"tight on {gpu}, in every way that was tried", Kind.VERDICT)
    else:
        yield Line(f"does not fit on {gpu}, in any way that was tried", Kind.VERDICT)
    yield Line(f"  {asked_for(plan)}")
    yield Line("")
    if best is not None:
        yield _table(found, work, verbose=verbose)
    for one in found.found:
        if one.figures is None:
            yield Line(_missed(one))
    if best is None or best.figures is None:
        yield Line("next: a larger GPU, or fewer tokens a sample (--seq)")
        return
    if verbose:
        yield from _sources(found)
    yield from _speed_note(found, verbose=verbose)
    more = "" if verbose else " (-v: costs, sources)"
    yield Line(f"next: the best way in full, or as settings of a trainer{more}")
    yield Line(f"  memcalc estimate {options(best.figures.plan)}", Kind.COMMAND)
    yield Line(f"  memcalc suggest {options(plan)} --as trainer", Kind.COMMAND)


def _table(found: Suggestions, work: Work, *, verbose: bool) -> Table:
    unit = unit_for(found.capacity)
    timed = any(one.speed is not None for one in found.fitting)
    rows: list[tuple[Cell, ...]] = []
    for number, one in enumerate(found.fitting, start=1):
        figures = one.figures
        assert figures is not None
        at = figures.plan
        rows.append(
            (
                str(number),
                (one.way.title, _changes(one)) if verbose else _in_a_line(one),
                f"{at.batch} x {at.grad_accum}",
                Size(needed_within(figures, found.capacity), unit),
                *([_rate(one, work)] if timed else []),
                *([one.way.costs] if verbose else []),
            )
        )
    speed = [_rate_head(found, work)] if timed else []
    costs = ["what it costs"] if verbose else []
    return Table(
        head=("", "way", "batch", f"needs {unit.name}", *speed, *costs),
        rows=rows,
        words=(0, 1, *((4 + timed,) if verbose else ())),
    )


def _changes(one: Suggestion) -> str:
    return (
        f"with {', '.join(r.name or r.key for r in one.remedies)}" if one.remedies else "as it is"
    )


def _in_a_line(one: Suggestion) -> str:
    """A way and its changes; micro-batches have a column of their own."""
    changes = (r.key for r in one.remedies if "grad_accum" not in dict(r.changes))
    return ", ".join([one.way.title, *changes])


def _rate_head(found: Suggestions, work: Work) -> str:
    if work.price is not None:
        return "price"
    if work.tokens is not None:
        return "hours"
    counted = any(one.speed is not None and one.speed.tokens for one in found.fitting)
    return "tokens/s" if counted else "samples/s"


def _rate(one: Suggestion, work: Work) -> str:
    speed = one.speed
    if speed is None:
        return "n/a"
    low, high = (rate * (speed.tokens or 1) for rate in (speed.low, speed.high))
    if work.tokens is None:
        return f"{_round(low)} to {_round(high)}"
    hours = (work.tokens / high / 3600, work.tokens / low / 3600)
    least, most = (each * (work.price or 1) for each in hours)
    return f"{_round(least)} to {_round(most)}"


def _round(value: float) -> str:
    """Two digits that count: more are not known."""
    if value >= 100:
        scale = 10 ** (len(str(int(value))) - 2)
        return f"{round(value / scale) * scale:,}"
    return f"{value:.2g}"


def _speed_note(found: Suggestions, *, verbose: bool) -> Iterator[Line]:
    if any(one.speed is not None for one in found.fitting):
        low, high = (f"{share:.0%}" for share in UTILISATION)
        text = f"speed: at {low} to {high} of the card's published peak, not measured"
        if verbose:
            text += (
                ": counted operations, and the bytes that a step moves; small batches reach less, "
                "and traffic between GPUs is not counted"
            )
        yield Line(text, Kind.NOTE)
    for reason in dict.fromkeys(one.no_speed for one in found.fitting if one.no_speed):
        yield Line(f"speed: n/a ({reason})", Kind.NOTE)


def _missed(one: Suggestion) -> str:
    if one.error is not None:
        return f"{one.way.title}: not estimated: {one.error}"
    least = one.closest
    if least is None or least.fit is None:
        return f"{one.way.title}: does not fit"
    if one.tight:
        return f"{one.way.title}: {fit_words(least.fit)} ({_smallest(least)})"
    short = needed(least) - least.fit.limit
    return f"{one.way.title}: {format_bytes(short)} too much even with {_smallest(least)}"


def _smallest(figures: Figures) -> str:
    plan = figures.plan
    extra = ", checkpointing" if plan.checkpointing else ""
    return f"batch {plan.batch}{extra}"


def _sources(found: Suggestions) -> Iterator[Line]:
    for one in found.fitting:
        yield Line(f"source, {one.way.title}: {one.way.source}", Kind.NOTE)
        for remedy in one.remedies:
            yield Line(f"  {remedy.key}: {remedy.cost} ({remedy.source})", Kind.NOTE)


def words(one: Suggestion) -> str:
    """A way that was just tried, in a line."""
    if one.figures is None:
        return _missed(one)
    return f"{one.way.title}: {format_bytes(needed(one.figures))}, {_changes(one)}"


def as_json(found: Suggestions) -> str:
    """Everything, in exact bytes; speeds in samples a second."""
    return document("suggestions", encode(found), indent=1)
