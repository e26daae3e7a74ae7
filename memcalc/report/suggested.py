"""Suggestions as blocks: ways to train on one GPU, or the smallest card for each."""

import shlex
from collections.abc import Iterator, Sequence

import msgspec

from memcalc.advice.suggest.records import Speed, Suggestion, Suggestions
from memcalc.advice.suggest.speed_and_price import UTILISATION, Prices, offloads
from memcalc.catalog import gpus
from memcalc.records.fields import options
from memcalc.records.plan import Plan
from memcalc.report.blocks import Block, Cell, Kind, Line, Size, Table
from memcalc.report.rows import asked_for, fit_words
from memcalc.units import format_bytes, unit_for


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens to train on and the price, where given."""

    tokens: float | None = None
    prices: Prices | None = None

    def head(self, speeds: Sequence[Speed | None]) -> tuple[str, ...]:
        """Return the titles of the columns that ``cells`` fills; empty if no speed is known."""
        known = [speed for speed in speeds if speed is not None]
        if not known:
            return ()
        if self.tokens is None:
            return ("tokens/s" if any(speed.tokens for speed in known) else "samples/s",)
        return ("hours", "cost") if self.prices is not None else ("hours",)

    def cells(self, speed: Speed | None, gpu: str, devices: int) -> Iterator[str]:
        """Yield a plan's speed as text, or its hours and cost for the tokens."""
        if speed is None:
            yield from ("n/a",) * (2 if self.tokens is not None and self.prices is not None else 1)
            return
        low, high = (rate * (speed.tokens or 1) for rate in (speed.low, speed.high))
        if self.tokens is None:
            yield f"{_format_two_digits(low)} to {_format_two_digits(high)}"
            return
        hours = [self.tokens / rate / 3600 for rate in (high, low)]
        yield " to ".join(map(_format_two_digits, hours))
        if self.prices is not None:
            price = self.prices.price(gpu) * devices
            yield " to ".join(_format_two_digits(each * price) for each in hours)


def _format_two_digits(value: float) -> str:
    """Return a number with two significant digits as text."""
    if value >= 100:
        scale = 10 ** (len(str(int(value))) - 2)
        return f"{round(value / scale) * scale:,}"
    return f"{value:.2g}"


def blocks(found: Suggestions, work: Work, *, verbose: bool = True) -> Iterator[Block]:
    """Yield suggestions as blocks: verdict, table of ways, reasons, notes, next command."""
    plan, shown = found.plan, _select_ways(found)
    best = shown[0] if shown else None
    if found.gpu is None:
        best = min(shown, key=_total_bytes, default=None)
    yield from (Line(text, Kind.VERDICT) for text in _write_verdicts(found, shown, best))
    yield Line(f"  {asked_for(plan)}")
    yield Line("")
    if shown:
        yield _tabulate(found, shown, work, verbose=verbose)
    fitting = {one.way.key for one in shown}
    for one in found.found:
        if one.figures is None and one.way.key not in fitting and (found.gpu or one.remedies):
            yield Line(_explain_misfit(one))
    if best is not None or found.gpu is None:
        yield from _list_notes(found, shown, work, verbose=verbose)
    yield from _advise_next(found, best, verbose=verbose)


def _select_ways(found: Suggestions) -> list[Suggestion]:
    """Return the ways that fit; with remedies only if that needs a smaller card."""
    plain = {one.way.key: _total_bytes(one) for one in found.fitting if not one.remedies}
    return [
        one
        for one in found.fitting
        if found.gpu is not None
        or not one.remedies
        or _total_bytes(one) < plain.get(one.way.key, 1 << 62)
    ]


def _write_verdicts(
    found: Suggestions, shown: Sequence[Suggestion], best: Suggestion | None
) -> Iterator[str]:
    if found.gpu is None:
        if best is None:
            yield "does not fit on up to 8 of these cards, in any way"
            return
        whole = next((one for one in shown if not one.remedies), best)
        for one in (best, whole) if _total_bytes(whole) > _total_bytes(best) else (best,):
            yield f"fits {_size(one)}: {_title(one)}"
        return
    several = f"{found.plan.devices} x " if found.plan.devices > 1 else ""
    gpu = f"{several}{found.gpu} ({format_bytes(found.capacity)})"
    if best is not None:
        fit = best.figures.fit if best.figures is not None else None
        spare = f", {format_bytes(fit.least_margin)} to spare" if fit is not None else ""
        yield f"fits on {gpu}: {best.way.title}{spare}"
    elif any(one.tight for one in found.found):
        yield f"tight on {gpu}, in every way that was tried"
    else:
        yield f"does not fit on {gpu}, in any way that was tried"


def _tabulate(
    found: Suggestions, shown: Sequence[Suggestion], work: Work, *, verbose: bool
) -> Table:
    by_card = found.gpu is None
    unit = unit_for(max(found.capacity, *map(_card_bytes, shown)))
    timed = not by_card or work.tokens is not None
    times = work.head([one.speed for one in shown]) if timed else ()
    costs = ["what it costs"] if verbose else []
    rows: list[tuple[Cell, ...]] = []
    for number, one in enumerate(shown, start=1):
        assert one.figures is not None
        plan, added = _plan(one), ", ".join(_list_remedies(one))
        way: Cell = ", ".join(filter(None, (one.way.title, added)))
        if verbose:
            way = (one.way.title, f"with {added}") if added else one.way.title
        size = Size(one.figures.needed_under(_card_bytes(one)), unit)
        card = [_name_card(plan), size, Size(_card_bytes(one), unit)]
        rows.append(
            (
                *([] if by_card else [str(number)]),
                way,
                f"{plan.batch} x {plan.grad_accum}",
                *(card if by_card else [size]),
                *(work.cells(one.speed, _find_gpu(plan).name, plan.devices) if times else ()),
                *([one.way.cost] if verbose else []),
            )
        )
    needs = f"needs {unit.name}"
    if by_card:
        head = ("way", "batch", "smallest card", needs, "has", *times, *costs)
    else:
        head = ("", "way", "batch", needs, *times, *costs)
    words = (0, 2) if by_card else (0, 1)
    return Table(head=head, rows=rows, words=(*words, *([len(head) - 1] if verbose else [])))


def _list_notes(
    found: Suggestions, shown: Sequence[Suggestion], work: Work, *, verbose: bool
) -> Iterator[Line]:
    if found.gpu is None:
        more = "" if verbose else "; -v: all cards, not those that clouds rent"
        yield Line(
            f"batch: samples x accumulation; the next size down does not fit{more}", Kind.NOTE
        )
    else:
        yield from _note_speed(found, verbose=verbose)
    if work.prices is not None:
        yield Line("cost: of all GPUs together, in your currency", Kind.NOTE)
    for one in shown if verbose else ():
        yield Line(f"source, {one.way.title}: {one.way.source}", Kind.NOTE)
        for remedy in one.remedies:
            yield Line(f"  {remedy.key}: {remedy.cost} ({remedy.source})", Kind.NOTE)


def _note_speed(found: Suggestions, *, verbose: bool) -> Iterator[Line]:
    if any(one.speed is not None for one in found.fitting):
        low, high = (f"{share:.0%}" for share in UTILISATION)
        text = f"speed: at {low} to {high} of the card's published peak, not measured"
        if verbose:
            text += (
                ": counted operations, and the bytes that a step moves; small batches reach less, "
                "and traffic between GPUs is not counted"
            )
        if any(offloads(_plan(one)) for one in found.fitting):
            text += "; shards cross PCIe 3.0 to 5.0 x16, and the CPU's update is not counted"
        yield Line(text, Kind.NOTE)
    for reason in dict.fromkeys(one.no_speed for one in found.fitting if one.no_speed):
        yield Line(f"speed: n/a ({reason})", Kind.NOTE)


def _advise_next(found: Suggestions, best: Suggestion | None, *, verbose: bool) -> Iterator[Line]:
    """Yield lines with the next command to type."""
    asked = f"memcalc suggest {options(found.plan)}"
    if best is None and found.gpu is None:
        yield Line("next: how many GPUs it takes")
        command = f"memcalc fit {options(found.plan)} --gpu 'H100 SXM' --count"
        yield Line(f"  {command}", Kind.COMMAND)
    elif best is None:
        yield Line("next: a larger GPU, or fewer tokens a sample (--seq)")
    elif found.gpu is None:
        yield Line("next: the best ways on a card of yours, or the smallest card's in full")
        card = _name_card(_plan(best)).replace(" x ", "x")
        yield Line(f"  {asked} --gpu {shlex.quote(card)}", Kind.COMMAND)
        yield Line(f"  memcalc estimate {options(_plan(best))}", Kind.COMMAND)
    else:
        more = "" if verbose else " (-v: costs, sources)"
        yield Line(f"next: the best way in full, or as settings of a trainer{more}")
        yield Line(f"  memcalc estimate {options(_plan(best))}", Kind.COMMAND)
        yield Line(f"  {asked} --as trainer", Kind.COMMAND)


def row_words(found: Suggestions) -> Iterator[str]:
    """Yield a line for each way that was tried."""
    for one in found.found:
        if one.figures is None:
            yield _explain_misfit(one)
        else:
            yield f"{_title(one)}: {format_bytes(one.figures.needed)} on {_name_card(_plan(one))}"


def _explain_misfit(one: Suggestion) -> str:
    """Return in a sentence why a way does not fit."""
    if one.error is not None:
        return f"{one.way.title}: not estimated: {one.error}"
    if one.floor is not None:
        floor = format_bytes(one.floor)
        return f"{one.way.title}: weights, gradients and optimizer state alone take {floor}"
    least = one.closest
    if least is None or least.fit is None:
        return f"{one.way.title}: does not fit"
    plan = least.plan
    variant = f"batch {plan.batch}{', checkpointing' if plan.checkpointing else ''}"
    if one.tight:
        return f"{one.way.title}: {fit_words(least.fit)} ({variant})"
    short = format_bytes(least.needed - least.fit.limit)
    return f"{one.way.title}: the smallest variant tried ({variant}) needs {short} more"


def _plan(one: Suggestion) -> Plan:
    """Return the plan of a suggestion that fits."""
    assert one.figures is not None
    return one.figures.plan


def _find_gpu(plan: Plan) -> gpus.Gpu:
    assert plan.gpu is not None
    return gpus.find(plan.gpu)


def _card_bytes(one: Suggestion) -> int:
    return _find_gpu(_plan(one)).memory


def _total_bytes(one: Suggestion) -> int:
    """Return the memory in bytes of all cards of a suggestion together."""
    return _card_bytes(one) * _plan(one).devices


def _name_card(plan: Plan) -> str:
    """Return a plan's GPU, and how many, as text: ``2 x T4``."""
    return f"{plan.devices} x {_find_gpu(plan).name}" if plan.devices > 1 else _find_gpu(plan).name


def _size(one: Suggestion) -> str:
    """Return the cards of a suggestion by number and gigabytes, and their name."""
    plan = _plan(one)
    several = f"{plan.devices} x " if plan.devices > 1 else ""
    return f"{several}{_find_gpu(plan).sold_as} GB ({_find_gpu(plan).name})"


def _title(one: Suggestion) -> str:
    """Return a way's title, with the remedies it needs."""
    return ", with ".join(filter(None, (one.way.title, ", ".join(_list_remedies(one)))))


def _list_remedies(one: Suggestion) -> list[str]:
    """Return the keys of a suggestion's remedies, without those shown in a column."""
    columns = {"grad_accum", "devices"}
    return [r.key for r in one.remedies if columns.isdisjoint(name for name, _ in r.changes)]
