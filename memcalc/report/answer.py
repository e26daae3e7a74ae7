"""One prediction for a person at a terminal: the answer, why, and what to type next."""

from __future__ import annotations

from collections.abc import Iterator

from memcalc.advice.explain.command_line import options
from memcalc.records.model import Place
from memcalc.records.prediction import RUNGS, Fit, FitVerdict, Peak, Prediction
from memcalc.records.trace import Component
from memcalc.report import rows, serving
from memcalc.report.blocks import Block, Cell, Kind, Line, Share, Size, Table
from memcalc.units import format_bytes, unit_for
from memcalc.workload import layouts

_NOTES = {
    Component.ACTIVATIONS: "saved for backward",
    Component.TEMPORARIES: "short-lived results",
    Component.INPUTS: "the batch",
    Component.BUFFERS: "constants of the model",
    Component.UNSHARDED: "layers gathered while used",
    Component.COMMUNICATION: "buffers of collectives",
    Component.KV_CACHE: "keys and values of past tokens",
    Component.QUANTISED_WEIGHTS: "linear layers in few bits",
    Component.QUANTISATION_CONSTANTS: "quantization scales",
    Component.WORKSPACES: "kernel scratch space",
}
_PER_PARAMETER = (Component.WEIGHTS, Component.MASTER_WEIGHTS)
_OF_TRAINED = (Component.GRADIENTS, Component.OPTIMIZER_STATE)
_LARGE = 1_000_000_000
"""Parameters from which few people train all in fp32."""


def blocks(prediction: Prediction) -> Iterator[Block]:
    """The verdict, the figures that lead to it, and the next command."""
    if prediction.serving is not None:
        yield from serving.blocks(prediction, prediction.serving)
        yield from notes(prediction)
        return
    yield headline(prediction)
    if _is_unusual(prediction):
        yield Line("  fp32 with AdamW is unusual at this size: try --preset full, lora or qlora")
    yield Line(f"  {rows.heading(prediction)}", Kind.TEXT)
    yield from (Line(f"  {words}", Kind.TEXT) for words in rows.outcome_words(prediction))
    yield Line("")
    yield _table(prediction)
    yield Line("")
    yield from of_each_gpu(prediction)
    yield from _sentences(prediction)
    yield from notes(prediction)
    yield from _next(prediction)


def _is_unusual(prediction: Prediction) -> bool:
    """A large model whose precision and optimizer are those of the defaults."""
    plan = prediction.plan
    whole = prediction.trainable > _LARGE and plan.precision in ("fp32", "tf32")
    return whole and not plan.command and not plan.infers and "adam" in plan.optim


def notes(prediction: Prediction) -> Iterator[Line]:
    """What was assumed, and what was not counted."""
    if prediction.assumptions:
        yield Line("assumed: " + "; ".join(prediction.assumptions), Kind.NOTE)
    if prediction.uncounted:
        yield Line("not counted: " + "; ".join(prediction.uncounted), Kind.NOTE)


def headline(prediction: Prediction) -> Line:
    """Fits or not, of how much, and what is left; without a GPU, how much it is."""
    words = rows.verdict(prediction)
    if words is not None:
        return Line(words, Kind.VERDICT if prediction.fit is not None else Kind.HEADING)
    peak = prediction.peak
    name, size = next(
        (rung, value)
        for rung in ("process_used", "reserved", "allocated", "requested")
        if (value := getattr(peak, rung)) is not None
    )
    where = f"in {peak.phase.value}"
    return Line(f"{format_bytes(size)} {_RUNG_WORDS[name]}, at the peak {where}", Kind.HEADING)


_RUNG_WORDS = {
    "process_used": "used by the process",
    "reserved": "reserved by PyTorch's allocator",
    "allocated": "allocated",
    "requested": "requested by tensors",
}


def _table(prediction: Prediction) -> Table:
    """Components down to what tensors ask for; then rung by rung to what the process holds."""
    peak = prediction.peak
    top = max(peak.requested, peak.reserved or 0, peak.process_used or 0)
    unit = unit_for(top)
    body: list[tuple[Cell, ...]] = []
    strong: list[int] = []

    def row(what: str, size: int, note: str = "", share: float | None = None) -> None:
        drawn: Cell = Share(share) if share is not None else ""
        body.append((what, unit.number(size), drawn, note))

    def rung(what: str, size: int, note: str, within: str = "") -> None:
        strong.append(len(body))
        row(what, size, f"{note}: {within}" if within else note)

    held = sorted(prediction.components.items(), key=lambda item: -item[1])
    for component, size in held:
        if size:
            share = size / max(peak.requested, 1)
            row(rows.component_word(component), size, _note(prediction, component, size), share)
    rung("requested", peak.requested, "requested by tensors")
    if peak.allocated is not None:
        row("+ rounding", peak.allocated - peak.requested, "requests become blocks")
        within = rows.span_range(prediction.allocated)
        rung("allocated", peak.allocated, "max_memory_allocated()", within)
    if peak.allocated is not None and peak.reserved is not None:
        row("+ cached", peak.reserved - peak.allocated, "free blocks kept for reuse")
        within = rows.span_range(prediction.allocator)
        rung("reserved", peak.reserved, "max_memory_reserved()", within)
    if peak.process_used is not None and peak.reserved is not None:
        managed = prediction.optimizer_state.total(Place.MANAGED)
        if managed:
            row("+ managed", managed, "paged optimizer state")
        outside = peak.process_used - peak.reserved - managed
        row("+ outside", outside, "CUDA context and libraries")
        rung("process used", peak.process_used, "nvidia-smi", rows.process_range(prediction))
    return Table(
        head=(f"at the peak, in {peak.phase.value}", unit.name, "", ""),
        rows=body,
        words=(0, 2, 3),
        strong=tuple(strong),
    )


def of_each_gpu(prediction: Prediction) -> Iterator[Block]:
    """The ladder of each, where a program uses several; the answer is of the fullest."""
    if not prediction.gpus:
        return
    known = [rung for rung in RUNGS if getattr(prediction.peak, rung) is not None]
    unit = unit_for(max(getattr(one.peak, known[-1]) for one in prediction.gpus))

    def sizes(peak: Peak) -> Iterator[Cell]:
        for rung in known:
            size = getattr(peak, rung)
            yield Size(size, unit) if size is not None else "n/a"

    judged = prediction.fit is not None
    yield Line(f"of {len(prediction.gpus)} GPUs cuda:{prediction.device} is shown, the fullest:")
    yield Table(
        head=(unit.name, *(rung.replace("_", " ") for rung in known), *([""] if judged else [])),
        rows=[
            (f"cuda:{one.index}", *sizes(one.peak), *([rows.fit_word(one.fit)] if judged else []))
            for one in prediction.gpus
        ],
        strong=tuple(
            at for at, one in enumerate(prediction.gpus) if one.index == prediction.device
        ),
    )
    yield Line("")


def _note(prediction: Prediction, component: Component, size: int) -> str:
    if component in _OF_TRAINED and prediction.trainable:
        rule = _rule(prediction) if component is Component.OPTIMIZER_STATE else ""
        alone = " that trains" if prediction.trainable < prediction.parameters else ""
        return f"{size / prediction.trainable:.2f} B/param{alone}{rule}"
    if component in _PER_PARAMETER and prediction.parameters:
        return f"{size / prediction.parameters:.2f} B/param"
    return _NOTES.get(component, "")


def _rule(prediction: Prediction) -> str:
    """The rule of thumb for the optimizer's state, beside the exact figure."""
    name = f"{prediction.plan.optim} state"
    found = [r.bytes_per_parameter for r in prediction.rules_of_thumb if r.name == name]
    if not found:
        return ""
    plan = prediction.plan
    # What DDP holds each GPU holds; any other layout divides it.
    divided = plan.devices > 1 and plan.parallel not in (None, "ddp")
    over = f" over {layouts.spread(plan).shards} GPUs" if divided else ""
    return f" (rule: {found[0]:g}{over})"


def _sentences(prediction: Prediction) -> Iterator[Line]:
    fields = ("allocated", "requested")
    rung = next(f for f in fields if getattr(prediction.peak, f) is not None)
    phases = [
        f"{p.phase.value} {format_bytes(size)}"
        for p in prediction.phases
        if (size := getattr(p, rung)) is not None
    ]
    yield Line(f"peak by phase ({rung}): {' · '.join(phases)}")
    if prediction.peak.process_used is None and prediction.context is not None:
        yield Line(f"process used: {rows.process_words(prediction)}")
    for name, reason in _unknown(prediction):
        yield Line(f"{name}: n/a ({reason})")
    if prediction.sent:
        yield Line(f"sent a step: {rows.sent_words(prediction.sent)}")
    for note in prediction.optimizer_state.notes:
        yield Line(f"optimizer state: {note}")


def _unknown(prediction: Prediction) -> Iterator[tuple[str, str]]:
    """Rungs that have no figure, those of one reason together."""
    reasons: dict[str, list[str]] = {}
    spanned = prediction.context is not None and prediction.peak.reserved is not None
    for rung in ("allocated", "reserved", *(() if spanned else ("process_used",))):
        reason = prediction.unknown.get(rung)
        if reason is not None:
            reasons.setdefault(reason, []).append(rung.replace("_", " "))
    for reason, names in reasons.items():
        yield ", ".join(names), reason


def _next(prediction: Prediction) -> Iterator[Line]:
    """What to type next."""
    plan, fit = prediction.plan, prediction.fit
    if plan.command:
        return
    if fit is None and plan.target != "cpu":
        yield Line(f"next: which GPUs are large enough, and what else would help; {_MORE}")
        yield Line(f"  memcalc fit {options(plan)} --gpus", Kind.COMMAND)
        return
    yield Line(f"next: {_why(fit)}; {_MORE}")
    yield Line(f"  memcalc explain {options(plan)}", Kind.COMMAND)


_MORE = "-v shows every figure"


def _why(fit: Fit | None) -> str:
    if fit is not None and fit.verdict is not FitVerdict.FITS:
        return "what is alive at the peak, and what would make it fit"
    return "what is alive at the peak, and what would need less"
