"""Suggestions as blocks: ways to train on one GPU, or the smallest card for each."""

import shlex
from collections.abc import Iterator, Sequence

import msgspec

from memcalc.advice.remedies.records import needed, needed_within
from memcalc.advice.suggest.records import Card, Cards, Speed, Suggestion, Suggestions, Tried
from memcalc.advice.suggest.speed_and_price import UTILISATION, Prices, offloads
from memcalc.records.fields import options
from memcalc.report.blocks import Block, Cell, Kind, Line, Size, Table
from memcalc.report.rows import asked_for, fit_words
from memcalc.units import format_bytes, unit_for


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens to train on and the price, where given."""

    tokens: float | None = None
    prices: Prices | None = None

    def head(self, speeds: Sequence[Speed | None]) -> tuple[str, ...]:
        """Names of the columns that ``cells`` fills; none where no speed is known."""
        known = [speed for speed in speeds if speed is not None]
        if not known:
            return ()
        if self.tokens is None:
            return ("tokens/s" if any(speed.tokens for speed in known) else "samples/s",)
        return ("hours", "cost") if self.prices is not None else ("hours",)

    def cells(self, speed: Speed | None, gpu: str, devices: int) -> Iterator[str]:
        """What a plan comes to on so many of a GPU."""
        if speed is None:
            yield from ("n/a",) * (2 if self.tokens is not None and self.prices is not None else 1)
            return
        low, high = (rate * (speed.tokens or 1) for rate in (speed.low, speed.high))
        if self.tokens is None:
            yield f"{_round(low)} to {_round(high)}"
            return
        hours = [self.tokens / rate / 3600 for rate in (high, low)]
        yield " to ".join(map(_round, hours))
        if self.prices is not None:
            price = self.prices.of(gpu) * devices
            yield " to ".join(_round(each * price) for each in hours)

    def note(self) -> Iterator[Line]:
        """What a cost is of."""
        if self.prices is not None:
            yield Line("cost: of all GPUs together, in your currency", Kind.NOTE)


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
    for one in found.fitting if verbose else ():
        yield Line(f"source, {one.way.title}: {one.way.source}", Kind.NOTE)
        for remedy in one.remedies:
            yield Line(f"  {remedy.key}: {remedy.cost} ({remedy.source})", Kind.NOTE)
    yield from _speed_note(found, verbose=verbose)
    yield from work.note()
    more = "" if verbose else " (-v: costs, sources)"
    yield Line(f"next: the best way in full, or as settings of a trainer{more}")
    yield Line(f"  memcalc estimate {options(best.figures.plan)}", Kind.COMMAND)
    yield Line(f"  memcalc suggest {options(plan)} --as trainer", Kind.COMMAND)


def _table(found: Suggestions, work: Work, *, verbose: bool) -> Table:
    unit = unit_for(found.capacity)
    times = work.head([one.speed for one in found.fitting])
    rows: list[tuple[Cell, ...]] = []
    for number, one in enumerate(found.fitting, start=1):
        figures = one.figures
        assert figures is not None
        at = figures.plan
        # Micro-batches have a column of their own.
        keys = (r.key for r in one.remedies if "grad_accum" not in dict(r.changes))
        rows.append(
            (
                str(number),
                (one.way.title, _changes(one)) if verbose else ", ".join([one.way.title, *keys]),
                f"{at.batch} x {at.grad_accum}",
                Size(needed_within(figures, found.capacity), unit),
                *(work.cells(one.speed, found.gpu, at.devices) if times else ()),
                *([one.way.costs] if verbose else []),
            )
        )
    costs = ["what it costs"] if verbose else []
    return Table(
        head=("", "way", "batch", f"needs {unit.name}", *times, *costs),
        rows=rows,
        words=(0, 1, *((4 + len(times),) if verbose else ())),
    )


def _changes(one: Suggestion) -> str:
    return (
        f"with {', '.join(r.name or r.key for r in one.remedies)}" if one.remedies else "as it is"
    )


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
        if any(one.figures is not None and offloads(one.figures.plan) for one in found.fitting):
            text += "; shards cross PCIe 3.0 to 5.0 x16, and the CPU's update is not counted"
        yield Line(text, Kind.NOTE)
    for reason in dict.fromkeys(one.no_speed for one in found.fitting if one.no_speed):
        yield Line(f"speed: n/a ({reason})", Kind.NOTE)


def _missed(one: Suggestion) -> str:
    if (told := untried(one)) is not None:
        return told
    least = one.closest
    if least is None or least.fit is None:
        return f"{one.way.title}: does not fit"
    plan = least.plan
    variant = f"batch {plan.batch}{', checkpointing' if plan.checkpointing else ''}"
    if one.tight:
        return f"{one.way.title}: {fit_words(least.fit)} ({variant})"
    short = format_bytes(needed(least) - least.fit.limit)
    return f"{one.way.title}: the smallest variant tried ({variant}) needs {short} more"


def untried(one: Tried) -> str | None:
    """Why a way has no figures; ``None``: it has some."""
    if one.error is not None:
        return f"{one.way.title}: not estimated: {one.error}"
    if one.floor is None:
        return None
    floor = format_bytes(one.floor)
    return f"{one.way.title}: weights, gradients and optimizer state alone take {floor}"


def words(one: Suggestion) -> str:
    """A way that was just tried, in a line."""
    if one.figures is None:
        return _missed(one)
    return f"{one.way.title}: {format_bytes(needed(one.figures))}, {_changes(one)}"


def card_blocks(found: Cards, work: Work, *, verbose: bool = True) -> Iterator[Block]:
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
        yield _card_table(shown, work, verbose=verbose)
    named = {one.way.key for one in shown}
    for one in found.found:
        if one.lean and one.way.key not in named:
            yield Line(_missed_card(one))
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


def _card_table(shown: list[Card], work: Work, *, verbose: bool) -> Table:
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


def _missed_card(one: Card) -> str:
    if (told := untried(one)) is not None:
        return told
    if one.closest is None:
        return f"{one.way.title}: fits no card"
    size = format_bytes(needed(one.closest))
    return f"{_title(one)}: needs {size}, more than one of these cards has"


def card_words(one: Card) -> str:
    """A way whose card was just found, in a line."""
    return _missed_card(one) if one.figures is None else f"{_title(one)}: {_size(one)}"
