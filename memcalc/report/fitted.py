"""Answers of ``memcalc fit`` as blocks."""

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from memcalc.advice.fit.records import DevicesFit, FitAnswer, GpuFit, Limit, Probe
from memcalc.advice.remedies.records import Trial
from memcalc.catalog.gpus import list_rental_gpus, prices
from memcalc.records.fields import options
from memcalc.records.prediction import FitVerdict
from memcalc.records.trace import SENT_SOURCE
from memcalc.report.answer import weightiest
from memcalc.report.blocks import Block, Cell, Kind, Line, Table
from memcalc.report.explained import search_lines
from memcalc.report.rows import assumed_words, describe, fit_words, sent_words
from memcalc.units import GIB, format_bytes

_MARKS = {FitVerdict.FITS: "", FitVerdict.TIGHT: " !", FitVerdict.DOES_NOT_FIT: " x"}


def blocks(answer: FitAnswer, *, verbose: bool = True) -> list[Block]:
    """Return an answer of ``memcalc fit`` as blocks: verdict, limits, tables, notes."""
    seq = answer.here.seq if answer.here is not None else answer.plan.seq
    asked = f"{answer.plan.model}: {describe(answer.plan, seq)}"
    found = sentences(answer)
    kind = Kind.VERDICT if answer.here is not None or answer.gpus else Kind.HEADING
    return [
        *([Line(found[0], kind), Line(f"  {asked}")] if found else [Line(asked, Kind.HEADING)]),
        *map(Line, found[1:]),
        *tables(answer, verbose=verbose),
        *(search_lines(answer.search, answer.before) if answer.search and answer.before else ()),
        *(Line(note, Kind.NOTE) for note in notes(answer, verbose=verbose)),
        *_suggest_command(answer),
    ]


def _suggest_command(answer: FitAnswer) -> Iterator[Line]:
    """Yield the next commands to type if nothing that was asked fits."""
    plan, here = answer.plan, answer.here
    if here is None or here.fit.verdict is not FitVerdict.DOES_NOT_FIT or plan.infers:
        return
    if answer.devices or answer.settings or any(limit.best for limit in answer.limits):
        return
    yield Line("next: other ways to train that fit, or how many GPUs this one needs")
    yield Line(f"  memcalc suggest {options(plan)}", Kind.COMMAND)
    # How many are asked for, so not how many there are.
    alone = replace(plan, devices=1, parallel=None, parallel_args=(), rank=None)
    yield Line(f"  memcalc fit {options(alone)} --count", Kind.COMMAND)


def sentences(answer: FitAnswer) -> list[str]:
    """Return the verdict and the largest sizes, one sentence each."""
    said = []
    if answer.here is not None:
        said.append(fit_words(answer.here.fit))
    elif answer.gpus:
        said.append(_summarize_gpus(answer.gpus))
    for limit in answer.limits:
        said += _describe_limit(limit, answer)
    if "seq" in answer.unknown:
        said.append(f"largest sequence: n/a ({answer.unknown['seq']})")
    return said


def _summarize_gpus(tried: Sequence[GpuFit]) -> str:
    """Return the verdict over GPUs, of which the cheapest come first."""
    fitting = [row.name for row in tried if row.fit is not None and row.fit.fits]
    if not fitting:
        return f"does not fit on any of {len(tried)} GPUs"
    return f"fits on {fitting[0]}, the cheapest of the {len(fitting)} GPUs that fit"


def row_words(answer: FitAnswer) -> Iterator[str]:
    """Yield the lines known so far: verdict, bounds of sizes, a line for each GPU."""
    if answer.here is not None and (answer.limits or not answer.gpus):
        yield f"{describe(answer.plan, answer.here.seq)}: {fit_words(answer.here.fit)}"
    for limit in answer.limits:
        yield _describe_limit(limit, answer)[0]
    for row in answer.gpus:
        yield f"{row.name}: {fit_words(row.fit) if row.fit is not None else row.reason}"


def _describe_limit(limit: Limit, answer: FitAnswer) -> list[str]:
    """Return lines on the largest batch or sequence, the next size and the advice."""
    what = "batch" if limit.axis == "batch" else "sequence"
    seq = answer.here.seq if answer.here is not None else None
    other = f" at {seq} tokens" if seq is not None else ""
    if limit.axis == "seq":
        other = f" at batch {answer.plan.batch}"
    best = limit.value(limit.best)
    if limit.best is None or best is None:
        tried = limit.value(limit.above) or limit.step
        none = "none, not even" if limit.exact else "not known yet:"
        tight = limit.value(limit.perhaps)
        rest = f" for sure; {tight} is tight" if tight is not None else ""
        return [f"largest {what}{other}: {none} {tried} fits{rest}"]
    spare = format_bytes(limit.best.fit.least_margin)
    least = "" if limit.exact else "at least "
    lines = [
        f"largest {what}{other}: {least}{best} with {spare} to spare{_describe_next_size(limit)}"
    ]
    if limit.advice and (limit.axis == "batch" or limit.suggested != best):
        size = "" if limit.suggested == best else f"take {limit.suggested}: "
        lines.append(f"  {size}{limit.advice}")
    return lines


def _describe_next_size(limit: Limit) -> str:
    if limit.above is not None:
        above, perhaps = limit.value(limit.above), limit.value(limit.perhaps)
        if perhaps is not None and perhaps != above:
            return f"; {above} and {perhaps} are tight"
        verdict = limit.above.fit.verdict
        is_tight = verdict is FitVerdict.TIGHT
        return f"; {above} {'is tight' if is_tight else verdict.value}"
    if limit.reason:
        return f"; the next cannot be run: {limit.reason}"
    return "; that is the model's maximum" if limit.exact else ""


def tables(answer: FitAnswer, *, verbose: bool = True) -> list[Block]:
    """Return the tables that were asked for: grid, GPUs, numbers of GPUs, settings."""
    found: list[Block] = []
    if answer.grid is not None:
        found.append(_tabulate_grid(answer))
    if answer.gpus:
        head = ("GPU", "about $/h", "offers", "needs at most", "to spare", "verdict")
        body = [
            (
                row.name,
                f"{row.price:g}" if row.price is not None else "n/a",
                *map(format_bytes, (row.capacity, row.fit.most, row.fit.least_margin)),
                row.fit.verdict.value,
            )
            for row in answer.gpus
            if row.fit is not None
        ]
        found.append(Table(title="GPUs, cheapest first", head=head, rows=body, words=(0, 5)))
        failed: dict[str, list[str]] = {}
        for row in answer.gpus:
            if row.fit is None:
                failed.setdefault(row.reason, []).append(row.name)
        found += [Line(f"{', '.join(names)}: {why}") for why, names in failed.items()]
        if {row.name for row in answer.gpus} == {gpu.name for gpu in list_rental_gpus()}:
            found.append(Line("GPUs that most clouds rent; -v tries all", Kind.NOTE))
        told = prices()
        found.append(Line(f"prices: {told.source}, {told.date}, in US dollars", Kind.NOTE))
    if answer.devices:
        over = ("GPUs", "layout", "needs at most", "to spare", "sent a step", "verdict")
        spread = [_make_devices_row(row) for row in answer.devices]
        gpu = answer.device or answer.plan.gpu
        title = f"How many {gpu}? (batch per GPU as given)"
        found.append(Table(title=title, head=over, rows=spread, words=(1, 5)))
    if answer.settings:
        columns = ("saves", "to spare", "verdict", "change, and its cost")
        title = "One change to the plan, what fits and costs least first"
        changes = [_make_setting_row(row, answer) for row in answer.settings]
        found.append(Table(title=title, head=columns, rows=changes, words=(2, 3)))
    return found


def _tabulate_grid(answer: FitAnswer) -> Table:
    grid = answer.grid
    assert grid is not None
    head = ("tokens \\ batch", *(str(batch) for batch in grid.batches))
    body = [
        (str(seq) if seq is not None else "any", *(_format_probe(cell) for cell in row))
        for seq, row in zip(grid.seqs, grid.cells, strict=True)
    ]
    title = "GiB of process memory (>: at least); x and > do not fit, ! is tight"
    return Table(title=title, head=head, rows=body)


def _format_probe(probe: Probe) -> str:
    fit = probe.fit
    size = fit.most / GIB
    text = f"{size:,.{1 if size < 100 else 0}f}"
    return f">{text}" if fit.metric == "allocated" else f"{text}{_MARKS[fit.verdict]}"


def _make_devices_row(row: DevicesFit) -> tuple[str, ...]:
    name, fit = row.parallel or "alone", row.fit
    if fit is None:
        return str(row.devices), name, "n/a", "n/a", "n/a", row.reason
    sizes = map(format_bytes, (fit.most, fit.least_margin, row.sent))
    return str(row.devices), name, *sizes, fit.verdict.value


def _make_setting_row(row: Trial, answer: FitAnswer) -> tuple[Cell, ...]:
    change, figures = (row.remedy.title, row.remedy.cost), row.figures
    if figures is None or figures.fit is None or answer.before is None:
        return "n/a", "n/a", row.error or "n/a", change
    saved = row.saving(answer.before, "reserved")
    return (
        format_bytes(saved) if saved is not None else "n/a",
        format_bytes(figures.fit.least_margin),
        figures.fit.verdict.value,
        change,
    )


def notes(answer: FitAnswer, *, verbose: bool = True) -> list[str]:
    """Return notes: how it was decided, assumptions, and what is not counted."""
    said = [
        "fit: all allocations were replayed on a GPU of this size, with the largest CUDA context"
    ]
    if answer.limits:
        said[0] += "; each largest size and the next one were run in full"
    if answer.context is not None and verbose:
        low, high = format_bytes(answer.context.low), format_bytes(answer.context.high)
        said.append(f"context: {low} to {high} ({answer.context.source})")
    sent = [
        f"{row.parallel} over {row.devices}: {sent_words(row.messages)}"
        for row in answer.devices
        if row.messages and row.devices == answer.devices[-1].devices
    ]
    if sent:
        said.append(f"sent a step, by each GPU in a ring ({SENT_SOURCE}): {'; '.join(sent)}")
    if answer.assumptions:
        assumed, left = list(answer.assumptions), 0
        if not verbose:
            assumed, left = weightiest(assumed)
        said.append(assumed_words(assumed, left))
    if answer.uncounted and verbose:
        said.append("not counted: " + "; ".join(answer.uncounted))
    return said
