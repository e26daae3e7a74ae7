"""Predictions as blocks, one in full or several side by side; and as JSON and CSV."""

import base64
import csv
import io
from collections.abc import Iterator, Sequence

from memcalc import untrusted_text
from memcalc.files.artifact import document, encode
from memcalc.files.trace_file import pack
from memcalc.records.fields import COMPARED, varied_settings
from memcalc.records.model import Place
from memcalc.records.prediction import RUNGS, Prediction
from memcalc.records.trace import SENT_SOURCE, Component, Trace
from memcalc.report import answer, rows
from memcalc.report.blocks import Block, Kind, Line, Size, Table, size_or, sizes
from memcalc.report.rows import STYLES
from memcalc.units import format_mib, unit_for


def blocks(predictions: Sequence[Prediction], *, verbose: bool = True) -> list[Block]:
    """Return one prediction as blocks, brief or in full, or several side by side."""
    if len(predictions) == 1:
        found = predictions[0]
        brief = not verbose or found.serving is not None
        return answer.blocks(found) if brief else list(_describe_prediction(found))
    first = predictions[0]
    return [
        Line(rows.heading(first, varied_settings([one.plan for one in predictions])), Kind.HEADING),
        comparison(predictions),
        *answer.notes(first, brief=not verbose),
    ]


def _describe_prediction(prediction: Prediction) -> Iterator[Block]:
    if prediction.fit is not None:
        yield from verdict(prediction)
    yield Line(rows.heading(prediction), Kind.HEADING)
    trains = "" if prediction.plan.infers else f", {prediction.trainable:,} trainable"
    tensors = f"{prediction.parameter_tensors} tensors"
    yield Line(f"{prediction.parameters:,} parameters in {tensors}{trains}")
    yield components(prediction)
    yield phases(prediction)
    yield from answer.of_each_gpu(prediction)
    yield from answer.of_each_rank(prediction)
    rungs = [f"{name} {value}" for name, value in rows.ladder(prediction)]
    if prediction.context is not None:
        yield Line("  ".join(rungs[:-1]))
        yield Line(rungs[-1])
        yield from (Line(f"  {words}") for words in rows.parts(prediction.context))
        for span in (prediction.allocated, prediction.allocator):
            if span is not None:
                yield from (Line(f"  {words}") for words in rows.parts(span))
    else:
        yield Line("  ".join(rungs))
    if prediction.fit is None:
        yield from verdict(prediction)
    if not prediction.plan.infers:
        yield Line(f"optimizer state: {rows.state_words(prediction)}")
    yield from (Line(f"  {note}") for note in prediction.optimizer_state.notes)
    yield from sent(prediction)
    for rule in prediction.rules_of_thumb:
        each = f"{rule.bytes_per_parameter:g} bytes/parameter"
        yield Line(f"rule of thumb: {rule.name}, {each}: {format_mib(rule.bytes)}", Kind.NOTE)
    yield from answer.notes(prediction)
    yield from answer.lengths(prediction.varied) if prediction.varied is not None else ()


def sent(prediction: Prediction) -> Iterator[Line]:
    """Yield a line on the bytes that this GPU sends in a step, by collective."""
    if prediction.sent:
        yield Line(f"sent a step: {rows.sent_words(prediction.sent)}; in a ring: {SENT_SOURCE}")


def verdict(prediction: Prediction) -> Iterator[Line]:
    """Yield a line whether it fits, if a GPU was named."""
    words = rows.verdict(prediction)
    if words:
        yield Line(words, Kind.VERDICT)


def components(prediction: Prediction) -> Table:
    """Return a table of the components at the peak, which sum to the requested bytes."""
    found = {name: size for name, size in prediction.components.items() if size}
    parts = list(found.values())
    whole, count = sum(parts), max(prediction.parameters, 1)
    unit = unit_for(whole)
    columns = zip(found, sizes(parts, unit), rows.shares(parts), strict=True)
    return Table(
        title=f"At the peak, in {prediction.peak.phase.value}",
        head=("component", unit.name, "share", "bytes/param"),
        rows=[
            *(
                (STYLES[name].words, size, share, f"{size.bytes / count:.2f}")
                for name, size, share in columns
            ),
            ("total", Size(whole, unit), "100.0%", f"{whole / count:.2f}"),
        ],
        strong=(len(found),),
    )


def phases(prediction: Prediction) -> Table:
    """Return a table of each phase's peak, by known memory level."""
    replayed = prediction.peak.allocated is not None
    unit = unit_for(prediction.peak.reserved or prediction.peak.requested)
    fields = ("allocated", "reserved") if replayed else ("requested",)
    names = fields
    if replayed and not prediction.plan.infers:
        fields, names = (*fields, "first_step_allocated"), (*names, "first step")
    return Table(
        title=f"Peak by phase, {unit.name}",
        head=("phase", *names),
        rows=[
            (phase.phase.value, *(size_or(getattr(phase, field), unit, "") for field in fields))
            for phase in prediction.phases
        ],
        strong=tuple(
            number
            for number, phase in enumerate(prediction.phases)
            if phase.phase is prediction.peak.phase
        ),
    )


def comparison(predictions: Sequence[Prediction]) -> Table:
    """Return a table of several predictions, the smallest peak first."""
    known = [rung for rung in RUNGS if any(getattr(p.peak, rung) is not None for p in predictions)]
    rungs = known[1:] or known
    unit = unit_for(max(getattr(p.peak, rung) or 0 for p in predictions for rung in rungs))
    settings = varied_settings([one.plan for one in predictions])
    named = {p.fit.gpu if p.fit is not None else p.plan.gpu for p in predictions} - {None}
    column = [f"on {gpu}" for gpu in named] if len(named) == 1 else ["fits"] if named else []
    return Table(
        title=f"{unit.name}, the smallest peak first",
        head=(
            *(COMPARED[name] for name in settings),
            "state",
            *(rung.replace("_", " ") for rung in rungs),
            "in",
            *column,
        ),
        rows=[
            (
                *(
                    f"{value:,}" if isinstance(value := getattr(p.plan, name), int) else str(value)
                    for name in settings
                ),
                Size(sum(map(p.optimizer_state.total, (Place.DEVICE, Place.MANAGED))), unit),
                *(size_or(getattr(p.peak, rung), unit) for rung in rungs),
                p.peak.phase.value,
                *([rows.fit_word(p.fit)] if column else []),
            )
            for p in sorted(predictions, key=lambda p: p.peak.allocated or p.peak.requested)
        ],
    )


def as_json(predictions: Sequence[Prediction], traces: Sequence[Trace] = ()) -> str:
    """Return one prediction as a JSON object, several as a list under ``predictions``.

    ``traces``: one for each, which ``memcalc explain`` reads; none: a prediction can be made again.
    """
    bodies = [encode(prediction) for prediction in predictions]
    for body, trace in zip(bodies, traces, strict=False):
        body["trace"] = base64.b64encode(pack(trace)).decode()
    return document("prediction", bodies[0] if len(bodies) == 1 else {"predictions": bodies})


def as_csv(predictions: Sequence[Prediction]) -> str:
    """Return predictions as CSV, one row each; unknown cells are empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        ["model", "task", "optim", "precision", "batch", "seq", "parameters", "trainable"]
        + [component.value for component in Component]
        + ["peak_phase", *RUNGS, "method"]
    )
    for p in predictions:
        plan = p.plan
        settings = [plan.model, p.task, plan.optim, plan.precision, plan.batch, p.seq]
        if plan.command is not None:
            # A script has settings of its own, which nobody reads.
            optim = p.optimizer_state.optimizer if p.optimizer_state is not None else None
            settings = [plan.name, p.task, optim, None, None, None]
        row = [
            *settings,
            *(p.parameters, p.trainable, *(p.components.get(part) for part in Component)),
            *(p.peak.phase.value, *(getattr(p.peak, rung) for rung in RUNGS), p.method),
        ]
        writer.writerow(map(untrusted_text.cell, row))
    return out.getvalue()
