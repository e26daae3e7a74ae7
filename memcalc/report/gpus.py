"""The smallest card for each way to train, as blocks and as JSON."""

import shlex
from collections.abc import Iterator

from memcalc.advice.remedies.records import needed, needed_within
from memcalc.advice.suggest.records import Card, Cards
from memcalc.records.fields import options
from memcalc.report.blocks import Block, Cell, Kind, Line, Size, Table
from memcalc.report.rows import asked_for
from memcalc.report.suggested import Work, untried
from memcalc.units import format_bytes, unit_for


def blocks(found: Cards, work: Work, *, verbose: bool = True) -> Iterator[Block]:
    """The smallest card for each way, how much it needs there, and what to type next."""
    plan = found.plan
    as_it_is = {one.way.key: _total(one) for one in found.fitting if not one.lean}
    # The lean form of a way only where it needs a smaller card.
    shown = [
        one
        for one in found.fitting
        if not one.lean or _total(one) < as_it_is.get(one.way.key, 1 << 62)
    ]
    smallest = min(shown, key=_total, default=None)
    whole = next((one for one in shown if not one.lean), None)
    if smallest is None:
        yield Line("does not fit on up to 8 of these cards, in any way", Kind.VERDICT)
    else:
        yield Line(f"fits {_size(smallest)}: {_title(smallest)}", Kind.VERDICT)
        if whole is not None and _total(whole) > _total(smallest):
            yield Line(f"fits {_size(whole)}: {_title(whole)}", Kind.VERDICT)
    yield Line(f"  {asked_for(plan)}")
    yield Line("")
    if shown:
        yield _table(shown, work, verbose=verbose)
    named = {one.way.key for one in shown}
    for one in found.found:
        if one.lean and one.way.key not in named:
            yield Line(_missed(one))
    yield Line(
        "batch: samples x accumulation; ckpt: checkpointing; the next size down does not fit"
        + ("" if verbose else "; -v: all cards, not those that clouds rent"),
        Kind.NOTE,
    )
    yield from work.note()
    if verbose:
        for one in shown:
            yield Line(f"source, {_title(one)}: {one.way.source}", Kind.NOTE)
    if smallest is None or smallest.figures is None:
        yield Line("next: how many GPUs it takes")
        yield Line(f"  memcalc fit {options(plan)} --gpu 'H100 SXM' --count", Kind.COMMAND)
        return
    yield Line("next: the best ways on a card of yours, or the smallest card's in full")
    gpu = f"{_devices(smallest)}x{smallest.gpu}" if _devices(smallest) > 1 else smallest.gpu
    yield Line(f"  memcalc suggest {options(plan)} --gpu {shlex.quote(gpu)}", Kind.COMMAND)
    yield Line(f"  memcalc estimate {options(smallest.figures.plan)}", Kind.COMMAND)


def _devices(one: Card) -> int:
    return one.figures.plan.devices if one.figures is not None else 1


def _total(one: Card) -> int:
    """Bytes of all cards together."""
    return one.capacity * _devices(one)


def _table(shown: list[Card], work: Work, *, verbose: bool) -> Table:
    times = work.head([one.speed for one in shown]) if work.tokens is not None else ()
    unit = unit_for(max(one.capacity for one in shown))
    rows: list[tuple[Cell, ...]] = []
    for one in shown:
        assert one.figures is not None
        at = one.figures.plan
        rows.append(
            (
                f"{one.way.title}, ckpt" if one.lean else one.way.title,
                f"{at.batch} x {at.grad_accum}",
                f"{_devices(one)} x {one.gpu}" if _devices(one) > 1 else one.gpu,
                Size(needed_within(one.figures, one.capacity), unit),
                Size(one.capacity, unit),
                *(work.cells(one.speed, one.gpu, at.devices) if times else ()),
                *([one.way.costs] if verbose else []),
            )
        )
    sizes = (f"needs {unit.name}", "has", *times)
    costs = ["what it costs"] if verbose else []
    head = ("way", "batch", "smallest card", *sizes, *costs)
    return Table(head=head, rows=rows, words=(0, 2, len(head) - 1) if verbose else (0, 2))


def _title(one: Card) -> str:
    return f"{one.way.title}, with checkpointing" if one.lean else one.way.title


def _size(one: Card) -> str:
    count = _devices(one)
    several = f"{count} x " if count > 1 else ""
    return f"{several}{one.sold_as} GB ({one.gpu})"


def _missed(one: Card) -> str:
    if (told := untried(one)) is not None:
        return told
    if one.closest is None:
        return f"{one.way.title}: fits no card"
    size = format_bytes(needed(one.closest))
    return f"{_title(one)}: needs {size}, more than one of these cards has"


def words(one: Card) -> str:
    """A way whose card was just found, in a line."""
    if one.figures is None:
        return _missed(one)
    return f"{_title(one)}: {_size(one)}"
