"""A prediction on one screen: the answer, why, and the next command."""

from collections.abc import Iterator, Sequence

from memcalc.catalog.models import TAKEN
from memcalc.records.fields import options
from memcalc.records.model import Place
from memcalc.records.prediction import LONGER, RUNGS, OnGpu, Prediction, Varied
from memcalc.records.trace import EMULATED, NO_GRADIENT, UNCOMPUTED, Component
from memcalc.report import rows, serving
from memcalc.report.blocks import Block, Cell, Kind, Line, Share, Size, Table, gauge, size_or
from memcalc.report.rows import STYLES
from memcalc.units import Unit, format_bytes, unit_for
from memcalc.workload import layouts

_PER_PARAMETER = (Component.WEIGHTS, Component.MASTER_WEIGHTS)
_OF_TRAINED = (Component.GRADIENTS, Component.OPTIMIZER_STATE)
_LARGE = 1_000_000_000
"""Parameters from which few people train or run all in fp32."""


def blocks(prediction: Prediction) -> list[Block]:
    """Return a prediction on one screen: verdict, table of the peak, notes, next command."""
    if prediction.serving is not None:
        first, *rest = serving.blocks(prediction, prediction.serving)
        return [first, *_note_unusual_precision(prediction), *rest, *notes(prediction, brief=True)]
    heading = f"  {rows.heading(prediction)}"
    most, fit, bar = 2 * (_COLUMNS - 6), prediction.fit, []
    if fit is not None:
        part = fit.needed / max(fit.limit, 1)
        bar.append(Line(f"  {gauge(part, _BAR)} {part:.0%} of the {fit.gpu}"))
    above: list[Block] = [
        headline(prediction),
        *bar,
        *_note_unusual_precision(prediction),
        Line(heading if len(heading) <= most else f"{heading[: most - 4]} ...", Kind.TEXT),
        *(Line(f"  {words}", Kind.TEXT) for words in rows.outcome_words(prediction)),
        Line(""),
        *of_each_rank(prediction),
    ]
    below = [*_summarize(prediction), *notes(prediction, brief=True), *_suggest_command(prediction)]
    varied = [] if prediction.varied is None else list(lengths(prediction.varied))
    taken = sum(map(_count_lines, (*above, *below, *varied)))
    return [*above, _tabulate_peak(prediction, LINES - taken), *below, *varied]


_BAR = 40
"""Columns of the share of the card that is needed."""
LINES, _COLUMNS = 24, 80
"""Of a default terminal."""
_LEAST = 2
"""Components that are shown in any case."""


def _note_unusual_precision(prediction: Prediction) -> Iterator[Line]:
    """Yield lines on a precision or layout that costs more memory than another would."""
    plan = prediction.plan
    if plan.command:
        return
    yield from _note_unusual_layout(prediction)
    yield from (Line(f"  {one}") for one in prediction.assumptions if one.startswith(EMULATED))
    half = str(dict(plan.parallel_args).get("param_dtype", ""))
    if plan.precision not in ("fp32", "tf32") or "16" in half:
        return
    if plan.infers:
        if prediction.components.get(Component.WEIGHTS, 0) > 4 * _LARGE:
            yield Line("  fp32 is unusual for inference at this size: try --precision bf16")
    elif prediction.trainable > _LARGE and "adam" in plan.optim:
        yield Line("  fp32 with AdamW is unusual at this size: try --preset full, lora or qlora")
    elif plan.adapters and prediction.parameters > _LARGE:
        yield Line("  fp32 with adapters is unusual at this size: try --preset lora or qlora")


def _note_unusual_layout(prediction: Prediction) -> Iterator[Line]:
    """Yield lines on a sharded plan over one GPU, and on autocast over fp32 units."""
    plan = prediction.plan
    if plan.parallel is not None and plan.devices == 1 and layouts.spread(plan).world == 1:
        yield Line(f"  {plan.parallel} is over 1 GPU: add --devices 8, or as many as you have")
    if layouts.autocasts_fp32_units(plan):
        copies = prediction.components.get(Component.AUTOCAST_COPIES, 0)
        words = "autocast copies the gathered weights"
        if copies:
            words = f"{format_bytes(copies)} of the peak are autocast's copies of weights"
        yield Line(f"  {words}: leave out --parallel-arg param_dtype=none")


def _count_lines(block: Block) -> int:
    """Return the number of terminal lines that a block takes."""
    if isinstance(block, Table):
        return len(block.rows) + bool(block.title) + bool(block.head)
    # A line is broken between words, so not all columns of it are filled.
    text = block.text if isinstance(block, Line) else ""
    return max(1, -(-len(text) // (_COLUMNS - 6))) if len(text) > _COLUMNS else 1


def notes(prediction: Prediction, *, brief: bool = False) -> Iterator[Line]:
    """Yield the assumptions and what is not counted; ``brief``: two lines of the most important."""
    assumed, left = list(prediction.assumptions), 0
    if brief:
        # The verdict says why it is unknown.
        reason = prediction.unknown.get("fit")
        assumed = [one for one in assumed if one != reason and not one.startswith(EMULATED)]
        assumed, left = weightiest(assumed)
        left += len(prediction.uncounted)
        if longer := next((one for one in prediction.uncounted if one.startswith(LONGER)), ""):
            yield Line(f"not counted: {longer}", Kind.NOTE)
            left -= 1
    if assumed:
        yield Line(rows.assumed_words(assumed, left), Kind.NOTE)
    if prediction.uncounted and not brief:
        yield Line("not counted: " + "; ".join(prediction.uncounted), Kind.NOTE)


def weightiest(assumed: list[str]) -> tuple[list[str], int]:
    """Return the most important assumptions that fit two lines, and how many are left out."""
    room = 2 * (_COLUMNS - 6) - len("assumed: ; 9 more (-v)")

    def weight(text: str) -> int:
        """Return the sort key of an assumption: 0 the most important, 2 the least."""
        if TAKEN in text or NO_GRADIENT in text or text.startswith(UNCOMPUTED):
            return 0
        return 1 if "--" in text or ENDED in text else 2

    kept: list[str] = []
    for text in sorted(assumed, key=weight):
        if text.startswith(UNCOMPUTED) or sum(len(one) + 2 for one in (*kept, text)) <= room:
            kept.append(text)
    return kept, len(assumed) - len(kept)


ENDED = "the script ended"
"""Begins what is assumed of a script that failed."""


def headline(prediction: Prediction) -> Line:
    """Return the verdict in a line, or without a GPU the peak's size."""
    words = rows.verdict(prediction)
    if words is not None:
        return Line(words, Kind.VERDICT if prediction.fit is not None else Kind.HEADING)
    peak = prediction.peak
    name = next(name for name in _RUNG_WORDS if getattr(peak, name) is not None)
    size = format_bytes(getattr(peak, name))
    return Line(f"{size} {_RUNG_WORDS[name]}, at the peak in {peak.phase.value}", Kind.HEADING)


_RUNG_WORDS = {
    "process_used": "used by the process",
    "reserved": "reserved by PyTorch's allocator",
    "allocated": "allocated",
    "requested": "requested by tensors",
}


def _tabulate_peak(prediction: Prediction, lines: int) -> Table:
    """Return a table of the peak's components and memory levels, within a number of lines."""
    peak = prediction.peak
    unit = unit_for(max(peak.requested, peak.reserved or 0, peak.process_used or 0))
    rungs = list(_make_rung_rows(prediction, unit))
    held = [item for item in prediction.components.items() if item[1]]
    held.sort(key=lambda item: -item[1])
    # One line is the head's, and one may be that of all that is small.
    shown = [
        (component, size)
        for component, size in held[: max(lines - len(rungs) - 2, _LEAST)]
        if size * 100 > peak.requested
    ]
    rest = held[len(shown) :]
    if len(rest) == 1:
        shown, rest = held, []
    sizes = [size for _, size in shown]
    # What is named is written as it is with -v; the last row takes what rounding leaves.
    others = unit.write_difference(peak.requested, *sizes)
    numbers = [*map(unit.number, sizes), others] if rest else unit.numbers(sizes)
    body: list[tuple[Cell, ...]] = [
        (
            STYLES[component].words,
            number,
            Share(size / max(peak.requested, 1)),
            _note_component(prediction, component, size),
        )
        for (component, size), number in zip(shown, numbers, strict=False)
    ]
    if rest:
        words = [STYLES[component].words for component, _ in rest]
        named = words[0] if len(words) == 1 else f"{words[0]} and {len(words) - 1} more"
        body.append(("other", numbers[-1], "", ", ".join(words) if len(words) < 3 else named))
    return Table(
        head=(f"peak, in {peak.phase.value}", unit.name, "", ""),
        rows=[*body, *rungs],
        words=(0, 2, 3),
        strong=tuple(range(len(body), len(body) + len(rungs))),
    )


def _make_rung_rows(prediction: Prediction, unit: Unit) -> Iterator[tuple[Cell, ...]]:
    """Yield a table row for each memory level, with its bytes over the level before."""
    peak = prediction.peak

    def more(what: str, *sizes: int) -> str:
        return f"+ {unit.write_difference(*sizes)} {what}"

    yield "requested", unit.number(peak.requested), "", "by tensors"
    if peak.allocated is not None:
        rounding = more("rounding", peak.allocated, peak.requested)
        note = rows.span_range(prediction.allocated) or "max_memory_allocated()"
        yield "allocated", unit.number(peak.allocated), rounding, note
    if peak.allocated is not None and peak.reserved is not None:
        cached = more("cached", peak.reserved, peak.allocated)
        note = rows.span_range(prediction.allocator) or "max_memory_reserved()"
        yield "reserved", unit.number(peak.reserved), cached, note
    if peak.process_used is not None and peak.reserved is not None:
        outside = more("context", peak.process_used, peak.reserved)
        needed = rows.would_need(prediction)
        yield "process used", unit.number(peak.process_used), outside, needed
    elif prediction.context is not None and peak.reserved is not None:
        yield "process used", "", "", rows.would_need(prediction)
    managed = prediction.optimizer_state.total(Place.MANAGED)
    if managed and prediction.fit is None:
        yield "managed", unit.number(managed), "", "paged optimizer state: GPU or host"


def of_each_gpu(prediction: Prediction) -> Iterator[Block]:
    """Yield a table of each memory level's peak on each GPU, where a program uses several."""
    if not prediction.gpus:
        return
    known = [r for r in RUNGS if any(_read_rung(one, r) is not None for one in prediction.gpus)]
    unit = unit_for(max(_read_rung(one, known[-1]) or 0 for one in prediction.gpus))
    judged = prediction.fit is not None
    yield Line(f"of {len(prediction.gpus)} GPUs cuda:{prediction.device} is shown, the fullest:")
    yield Table(
        head=(unit.name, *(rung.replace("_", " ") for rung in known), *([""] if judged else [])),
        rows=[
            (
                f"cuda:{one.index}",
                *(size_or(_read_rung(one, rung), unit) for rung in known),
                *([rows.fit_word(one.fit)] if judged else []),
            )
            for one in prediction.gpus
        ],
        strong=tuple(
            at for at, one in enumerate(prediction.gpus) if one.index == prediction.device
        ),
    )
    yield Line("")


def of_each_rank(prediction: Prediction) -> Iterator[Block]:
    """Yield a table of each rank's peak, where several processes were run."""
    if not prediction.ranks:
        return
    rungs = [one.peak.allocated or one.peak.requested for one in prediction.ranks]
    unit, judged = unit_for(max(rungs)), prediction.fit is not None
    staged = any(one.stage is not None for one in prediction.ranks)
    yield Line(f"rank {prediction.rank} is shown, which needs most:")
    yield Table(
        head=(
            "rank",
            *(["stage"] if staged else []),
            f"peak, {unit.name}",
            "in",
            "most of it",
            *([""] if judged else []),
        ),
        rows=[
            (
                _list_ranks((one.rank, *one.alike)),
                *(["" if one.stage is None else str(one.stage)] if staged else []),
                Size(size, unit),
                one.peak.phase.value,
                f"{STYLES[one.dominant].words} {unit.number(one.bytes)}",
                *(
                    [f"exit code {one.code}" if one.code else rows.fit_word(one.fit)]
                    if judged
                    else []
                ),
            )
            for one, size in zip(prediction.ranks, rungs, strict=True)
        ],
        strong=tuple(at for at, one in enumerate(prediction.ranks) if one.rank == prediction.rank),
    )
    yield Line("")


_NAMED_RANKS = 4
"""Ranks of a row that are named; of more the first, and how many there are."""


def _list_ranks(ranks: Sequence[int]) -> str:
    """Return the rank numbers of a table row as text."""
    if len(ranks) > _NAMED_RANKS:
        return f"{ranks[0]} (as {len(ranks) - 1} others)"
    return ", ".join(map(str, ranks))


def _read_rung(one: OnGpu, rung: str) -> int | None:
    """Return the bytes of one GPU at a memory level such as ``reserved``, or None."""
    size: int | None = getattr(one.peak, rung)
    if size is None and rung == "process_used" and one.fit is not None:
        return one.fit.needed if one.fit.metric == rung else None
    return size


def _note_component(prediction: Prediction, component: Component, size: int) -> str:
    """Return a table note on a component: bytes per parameter, or its description."""
    if component in _OF_TRAINED and prediction.trainable:
        rule = _quote_rule_of_thumb(prediction) if component is Component.OPTIMIZER_STATE else ""
        alone = " that trains" if prediction.trainable < prediction.parameters else ""
        return f"{size / prediction.trainable:.2f} B/param{alone}{rule}"
    if component in _PER_PARAMETER and prediction.parameters:
        return f"{size / prediction.parameters:.2f} B/param"
    return STYLES[component].note


def _quote_rule_of_thumb(prediction: Prediction) -> str:
    """Return `` (rule: 8)``, the optimizer's rule of thumb in bytes per parameter, or ""."""
    name = f"{prediction.plan.optim} state"
    found = [r.bytes_per_parameter for r in prediction.rules_of_thumb if r.name == name]
    if not found:
        return ""
    plan = prediction.plan
    # What DDP holds each GPU holds; any other layout divides it.
    divided = plan.devices > 1 and plan.parallel not in (None, "ddp")
    over = f", over {layouts.spread(plan).shards}" if divided else ""
    return f" (rule: {found[0]:g}{over})"


def _summarize(prediction: Prediction) -> Iterator[Line]:
    """Yield lines on peaks by phase, several GPUs, unknown memory levels and traffic."""
    rung = next(f for f in ("allocated", "requested") if getattr(prediction.peak, f) is not None)
    sizes = {p.phase.value: getattr(p, rung) or 0 for p in prediction.phases}
    if prediction.varied is None and sizes:
        unit = unit_for(max(sizes.values()))
        phases = " · ".join(f"{name} {unit.number(size)}" for name, size in sizes.items())
        yield Line(f"by phase, {unit.name}: {phases}")
    if prediction.gpus:
        known = [one.peak.process_used or one.peak.reserved or 0 for one in prediction.gpus]
        least, most = format_bytes(min(known)), format_bytes(max(known))
        yield Line(
            f"of {len(known)} GPUs cuda:{prediction.device} is shown, the fullest; "
            f"they use {least} to {most}"
        )
    for names, value in rows.ladder(prediction):
        if value.startswith("n/a ("):
            yield Line(f"{names}: {value}")
    if prediction.sent:
        yield Line(f"sent a step: {format_bytes(prediction.traffic)} to other GPUs")


def _suggest_command(prediction: Prediction) -> Iterator[Line]:
    """Yield lines with the next command to type."""
    plan, fit = prediction.plan, prediction.fit
    if plan.command:
        # The verb that ran it says where the run is kept.
        return
    if fit is None and plan.target != "cpu":
        yield Line(f"next: which GPUs are large enough {_MORE}")
        yield Line(f"  memcalc fit {options(plan)} --gpus", Kind.COMMAND)
        return
    why = "would need less" if fit is None or fit.fits else "would make it fit"
    yield Line(f"next: what is alive at the peak and what {why} {_MORE}")
    yield Line(f"  memcalc explain {options(plan)}", Kind.COMMAND)


_MORE = "(-v: every figure)"


def lengths(varied: Varied) -> Iterator[Block]:
    """Yield the memory over batches of varying length, in a table by way of training."""
    first, *others = varied.ways
    yield Line(
        f"Lengths {varied.lengths}: {varied.batches} batches of "
        f"{first.shortest} to {first.longest} tokens",
        Kind.HEADING,
    )
    yield Line(
        f"one batch alone: peak allocated {format_bytes(varied.least)} to "
        f"{format_bytes(varied.most)}; one after the other: reserved {format_bytes(first.reserved)}"
    )
    yield Table(
        head=("way", "batches, tokens", "allocated", "reserved", "saved"),
        rows=[
            (
                way.name,
                f"{way.shortest} to {way.longest}",
                Size(way.allocated),
                Size(way.reserved),
                "" if way is first else format_bytes(first.reserved - way.reserved),
            )
            for way in (first, *others)
        ],
    )
