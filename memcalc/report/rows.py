"""Text and figures of a prediction, shared by all formats."""

from collections.abc import Collection, Iterator, Sequence

import msgspec

from memcalc.dialects import FILES
from memcalc.estimation.fits import describe_growth, explain_tight
from memcalc.records.fields import COMPARED, FIELDS, changed_settings, varied_settings
from memcalc.records.model import Place
from memcalc.records.plan import Plan
from memcalc.records.prediction import RUNGS, Fit, FitVerdict, Prediction, Span
from memcalc.records.trace import Component, Sent
from memcalc.units import GIB, MIB, Unit, format_bytes, format_mib
from memcalc.workload import loops


class Style(msgspec.Struct, frozen=True):
    """How one component is named and drawn, also for readers without color vision.

    Source: Okabe and Ito 2008, "Color Universal Design", https://jfly.uni-koeln.de/color/ (eight
    colors); gray, and six of Tol's muted scheme (sronpersonalpages.nl/~pault), are added.
    """

    color: str
    hatch: str
    """A hatch of matplotlib; empty: plain."""
    letter: str
    """The letter that a terminal draws it with."""
    words: str
    note: str = ""
    """An explanation, where its words need one."""


STYLES = {
    Component.WEIGHTS: Style("#0072B2", "", "W", "weights"),
    Component.QUANTIZED_WEIGHTS: Style(
        "#117733", "++", "Q", "quantized weights", "linear layers in few bits"
    ),
    Component.QUANTIZATION_CONSTANTS: Style("#88CCEE", "-", "q", "quantization scales"),
    Component.MASTER_WEIGHTS: Style("#56B4E9", "//", "M", "master weights"),
    Component.OPTIMIZER_STATE: Style("#CC79A7", "\\\\", "O", "optimizer state"),
    Component.GRADIENTS: Style("#D55E00", "xx", "G", "gradients"),
    Component.BUFFERS: Style("#999999", "--", "b", "buffers", "constants of the model"),
    Component.INPUTS: Style("#000000", "", "i", "inputs", "the batch"),
    Component.ACTIVATIONS: Style("#E69F00", "", "a", "activations", "saved for backward"),
    Component.HELD: Style(
        "#DDCC77", "\\\\\\", "h", "held by script", "tensors in the script's variables"
    ),
    Component.TEMPORARIES: Style("#F0E442", "..", "t", "temporaries", "short-lived results"),
    Component.AUTOCAST_COPIES: Style(
        "#999933", "xxx", "A", "autocast cache", "autocast's copies of weights"
    ),
    Component.UNSHARDED: Style(
        "#332288", "oo", "U", "unsharded weights", "layers gathered while used"
    ),
    Component.COMMUNICATION: Style("#882255", "**", "c", "communication", "buffers of collectives"),
    Component.KV_CACHE: Style("#AA4499", "///", "K", "KV cache", "keys and values of past tokens"),
    Component.WORKSPACES: Style("#009E73", "||", "k", "workspaces", "kernel scratch space"),
}
"""In the order bands are stacked: what is always there lies at the bottom."""


def name_differences(plan: Plan, others: Sequence[Plan]) -> str:
    """Return the settings in which a plan differs from others, as ``adam8bit, batch 8``."""
    plain = ("optim", "precision", "gpu")
    return ", ".join(
        str(getattr(plan, name)) if name in plain else f"{COMPARED[name]} {getattr(plan, name)}"
        for name in varied_settings(others)
    )


def heading(prediction: Prediction, without: Collection[str] = ()) -> str:
    """Return model and settings of a prediction in one line, without some of ``COMPARED``."""
    plan = prediction.plan
    if plan.command:
        head = f" ({prediction.head})" if prediction.head else ""
        return f"{plan.name}{head}: {prediction.optimizer_state.optimizer}"
    return f"{plan.model} ({prediction.head}): {describe(plan, prediction.seq, without)}"


def labels(predictions: Sequence[Prediction]) -> list[str]:
    """Return a unique label for each prediction: the settings that differ, if that is enough."""
    plans = [one.plan for one in predictions]
    for name in (lambda one: name_differences(one.plan, plans), heading):
        found = [name(one) for one in predictions]
        if len(set(found)) == len(found):
            return found
    return [f"{name} ({number})" for number, name in enumerate(found, start=1)]


def asked_for(plan: Plan) -> str:
    """Return the model and the samples of a step in one line, for ``memcalc suggest``."""
    each = " of each GPU" if plan.devices > 1 else ""
    count = plan.batch * plan.grad_accum
    samples = f"{count} sample{'s' * (count > 1)} a step{each}, as asked for"
    return f"{plan.model}: {samples}: {describe(plan, plan.seq)}"


def describe(plan: Plan, seq: int | None, without: Collection[str] = ()) -> str:
    """Return a plan's settings that differ from the defaults, in one line."""
    named = {
        "optim": "" if plan.infers else plan.optim,
        "precision": plan.precision,
        "batch": f"batch {plan.batch}",
        "seq": f"{seq} tokens" if seq is not None else "",
    }
    shown = {name: "" if name in without else text for name, text in named.items()}
    does = ""
    if plan.infers:
        does = "one forward pass" if plan.generate is None else f"{plan.generate} tokens generated"
    # What trains stands in no plan of inference, and a cache in none of a training.
    parts = [
        does or shown["optim"],
        shown["precision"],
        " x ".join(filter(None, (shown["batch"], shown["seq"]))),
        f"accumulation {plan.grad_accum}" if plan.grad_accum > 1 else "",
        "checkpointing" if plan.checkpointing else "",
        f"{plan.scheme} base" if plan.scheme else "",
        f"LoRA {plan.adapters}" if plan.adapters else "",
        f"{plan.cache} cache" if plan.cache != "dynamic" else "",
        f"{plan.beams} beams" if plan.beams > 1 else "",
        "Liger kernels" if plan.liger else "",
        f"float8 ({plan.float8})" if plan.float8 else "",
        f"torch.compile ({plan.compile})" if plan.compile else "",
        plan.parallel or "",
        f"{plan.devices} GPUs" if plan.devices > 1 and not plan.infers else "",
        loops.find(plan.loop).title,
        "updates in backward" if plan.optim_in_backward else "",
        "resumed" if plan.resume else "",
        f"then {plan.eval} batches of evaluation" if plan.eval else "",
        *_list_settings(plan, without),
    ]
    return ", ".join(filter(None, parts))


_DESCRIBED = {
    *COMPARED,
    *FILES,
    *"model task preset recipe command inputs gpu grad_accum checkpointing quant lora".split(),
    *"liger float8 compile parallel devices loop optim_in_backward resume eval".split(),
    *"generate inference cache beams".split(),
}
"""Fields that a plan's line describes in words, or that stand elsewhere."""


def _list_settings(plan: Plan, without: Collection[str]) -> Iterator[str]:
    """Yield the other settings that differ from the defaults, as they are typed."""
    for name, value in changed_settings(plan).items():
        if name not in (*_DESCRIBED, *without) and FIELDS[name].option is not None:
            option, *words = FIELDS[name].write(value)
            shown = (word for word in words if word != option)
            yield " ".join([option.removeprefix("--"), *shown])


def shares(sizes: Sequence[int]) -> list[str]:
    """Return each size's percentage of their sum, rounded so that they add up to 100."""
    unit = Unit("%", 10 * max(sum(sizes), 1))
    return [f"{text}%" for text in unit.numbers([1000 * size for size in sizes])]


def ladder(prediction: Prediction) -> list[tuple[str, str]]:
    """Return each memory level's name and peak as texts; levels unknown for one reason together."""
    known: list[tuple[str, str]] = []
    unknown: dict[str, list[str]] = {}
    for rung in RUNGS:
        name, value = rung.replace("_", " "), getattr(prediction.peak, rung)
        ends = process_ends(prediction) if rung == "process_used" else None
        if ends is not None:
            spans = filter(None, (prediction.context, prediction.allocator))
            sources = f"context: {'; '.join(span.source for span in spans)}"
            why = prediction.unknown.get("process_used", sources)
            known.append((name, f"{_format_range(*ends)} ({why})"))
        elif value is not None:
            known.append((name, format_mib(value)))
        else:
            reason = prediction.unknown.get(rung)
            unknown.setdefault(f"n/a ({reason})" if reason else "n/a", []).append(name)
    return [*known, *((", ".join(names), reason) for reason, names in unknown.items())]


def process_ends(prediction: Prediction) -> tuple[int, int] | None:
    """Return the least and most bytes that the process uses, or None if unknown."""
    context, reserved = prediction.context, prediction.peak.reserved
    if context is None or reserved is None:
        return None
    held = prediction.allocator
    least, most = (held.low, held.high) if held is not None else (reserved, reserved)
    return least + context.low, most + context.high


def would_need(prediction: Prediction) -> str:
    """Return the range of the process's memory as text: ``nvidia-smi: 3.1 to 3.4 GiB``."""
    ends, fit = process_ends(prediction), prediction.fit
    over = fit is not None and ends is not None and ends[1] > fit.capacity
    return f"{'would need' if over else 'nvidia-smi:'} {_format_range(*ends) if ends else 'n/a'}"


def span_range(span: Span | None) -> str:
    """Return a span's range as text; empty if it is exact."""
    return "" if span is None or span.low == span.high else _format_range(span.low, span.high)


def _format_range(low: int, high: int) -> str:
    """Return a range rounded outward to tenths of a GiB or tens of MiB."""
    if high >= GIB:
        return f"{low * 10 // GIB / 10:,.1f} to {-(-high * 10 // GIB) / 10:,.1f} GiB"
    return f"{low // MIB // 10 * 10} to {-(-high // (10 * MIB)) * 10} MiB"


def parts(span: Span) -> Iterator[str]:
    """Yield the parts of a span, one line each."""
    for part in span.parts:
        likely = f", likely {part.likely / MIB:,.0f}" if part.likely is not None else ""
        ends = f"{part.low / MIB:,.0f} to {part.high / MIB:,.0f} MiB"
        yield f"{part.name}: {ends}{likely} ({part.source})"


def state_words(prediction: Prediction) -> str:
    """Return the bytes of the optimizer's state by place of memory, in words."""
    state = prediction.optimizer_state
    held = {place: size for place in Place if (size := state.total(place))}
    return ", ".join(f"{size:,} B on the {at.value}" for at, size in held.items()) or "no state"


def sent_words(sent: Sequence[Sent]) -> str:
    """Return the bytes that a GPU sends in a step, by collective, in words."""
    several = len({one.ranks for one in sent}) > 1
    kinds = ", ".join(
        f"{one.collective}{f' among {one.ranks}' if several else ''} "
        f"{format_bytes(one.bytes)} in {one.calls}"
        for one in sorted(sent, key=lambda one: -one.bytes)
    )
    return f"{format_bytes(sum(one.bytes for one in sent))} ({kinds})"


def verdict(prediction: Prediction) -> str | None:
    """Return in a sentence whether a prediction fits its GPU; None without a GPU."""
    fit = prediction.fit
    if fit is None:
        reason = prediction.unknown.get("fit")
        return f"unknown whether it fits {prediction.plan.gpu}: {reason}" if reason else None
    if fit.verdict is FitVerdict.LEAKS:
        return f"{fit.verdict.value} on {fit.gpu}: fits at first, but keeps more memory every step"
    refusal = prediction.refusal
    if refusal is not None and refusal.last and not refusal.by_own_limit:
        return (
            f"{FitVerdict.DOES_NOT_FIT.value} on {fit.gpu}: {format_bytes(fit.needed)} of "
            f"{format_bytes(fit.capacity)} were in use when {format_bytes(refusal.asked)} more "
            "were asked for"
        )
    managed = prediction.optimizer_state.total(Place.MANAGED)
    if managed > max(fit.margin, 0):
        return f"{fit_words(fit)}; {format_bytes(managed)} of managed memory may lie on the host"
    return fit_words(fit) + (f"; plus {format_bytes(managed)} managed" if managed else "")


def outcome_words(prediction: Prediction) -> Iterator[str]:
    """Yield sentences on where a script ran out of memory, and its growth per step."""
    refusal, grows = prediction.refusal, prediction.growth
    if refusal is not None:
        at = f" at {refusal.line}" if refusal.line else ""
        left = f"{format_bytes(refusal.free)} free"
        if refusal.by_own_limit:
            left = "more than torch.cuda.set_per_process_memory_fraction leaves"
        yield (
            f"out of memory in {refusal.phase.value}{at}: asked for {format_bytes(refusal.asked)}, "
            f"{left}; the figures are from "
            f"{'the run until then' if refusal.last else 'a run without a memory limit'}"
        )
    if grows is not None and grows.matters:
        yield describe_growth(grows)


def fit_word(fit: Fit | None) -> str:
    """Return the verdict of a fit in a word, ``n/a`` for None."""
    return fit.verdict.value if fit is not None else "n/a"


def fit_words(fit: Fit) -> str:
    """Return a fit in one sentence: verdict, bytes needed and to spare."""
    found, offered = fit.verdict, format_bytes(fit.capacity)
    if fit.limit != fit.capacity:
        allowed = f"{format_bytes(fit.limit)} that per_process_memory_fraction allows"
        offered = f"the {allowed} (of {offered})"
    does = fit.metric.replace("_", " ")
    if found is FitVerdict.DOES_NOT_FIT:
        # Closed forms know only the least that is held.
        does = "needs at least" if fit.metric == "requested" else "needs"
    if found is FitVerdict.TIGHT:
        rest = explain_tight(fit)
    else:
        rest = f"{format_bytes(abs(fit.margin))} {'to spare' if fit.margin >= 0 else 'too much'}"
    return f"{found.value} on {fit.gpu}: {does} {format_bytes(fit.needed)} of {offered}, {rest}"


def assumed_words(assumed: Sequence[str], left: int = 0) -> str:
    """Return the assumptions in one sentence; ``left``: how many more there are."""
    return "assumed: " + "; ".join([*assumed, *([f"{left} more (-v)"] if left else [])])
