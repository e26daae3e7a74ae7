"""Pieces of an HTML report: one function a table, and a picture that carries its own data."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

from memcalc.explanation.records import Explanation, PeakContents
from memcalc.records.prediction import ALLOCATOR_RUNGS, RUNGS, Prediction
from memcalc.report import explained, plots, rows
from memcalc.report.rows import COMPONENT_WORDS
from memcalc.units import format_mib

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_TOP = 25


def components(prediction: Prediction) -> str:
    """What is held at the peak, by component, in exact bytes."""
    body = [
        (name, f"{size:,}", f"{part:.1%}", f"{each:.2f}")
        for name, size, part, each in rows.component_rows(prediction)
    ]
    total = sum(prediction.components.values())
    body.append(("requested", f"{total:,}", "100.0%", ""))
    head = ("component at the peak", "bytes", "share", "bytes/parameter")
    return table(head, body, numbers={1, 2, 3}, total=True)


def phases(prediction: Prediction) -> str:
    """The peak of each phase."""
    body = [
        (
            phase.phase.value,
            format_mib(phase.requested),
            *(format_mib(v) if v is not None else "n/a" for v in (phase.allocated, phase.reserved)),
        )
        for phase in prediction.phases
    ]
    return table(("phase", *ALLOCATOR_RUNGS), body, numbers={1, 2, 3})


def peak(moment: PeakContents) -> str:
    """Everything alive at the peak, the largest kinds in full."""
    shown, count, size = explained.split(moment, _TOP)
    body = [
        (
            f"{group.bytes:,}",
            explained.share(group.bytes, moment.requested),
            str(group.count),
            COMPONENT_WORDS[group.component],
            explained.group_words(group),
            group.kept,
        )
        for group in shown
    ]
    if count:
        rest = f"{len(moment.groups) - len(shown)} more kinds"
        part = explained.share(size, moment.requested)
        body.append((f"{size:,}", part, str(count), "", rest, ""))
    everything = str(sum(group.count for group in moment.groups))
    body.append((f"{moment.requested:,}", "100.0%", everything, "requested", "", ""))
    head = ("bytes", "share", "n", "component", "made by", "kept")
    return "<h2>Alive at the peak</h2>" + table(head, body, numbers={0, 1, 2}, total=True)


def comparison(predictions: Sequence[Prediction]) -> str:
    """Several plans, the smallest peak first."""
    body = [
        (
            prediction.plan.optim,
            prediction.peak.phase.value,
            *(rows.unknown_or(prediction, getattr(prediction.peak, r), r) for r in RUNGS),
        )
        for prediction in sorted(predictions, key=lambda p: p.peak.requested)
    ]
    head = ("optimizer", "peak in", *(rung.replace("_", " ") for rung in RUNGS))
    return table(head, body, numbers={2, 3, 4, 5})


def remedies(explanation: Explanation) -> list[str]:
    """What each remedy changes, and the plan that holds."""
    body = [
        (*explained.option_row(explanation, option), option.remedy.source)
        for option in explanation.options
        if option.trial.error is None
    ]
    parts = ["<h2>What would need less</h2>"]
    if body:
        columns = explained.option_columns(explanation)
        numbers = set(range(1, len(columns) - 1))
        parts.append(table((*columns, "source"), body, numbers=numbers))
    parts += [f"<p><small>{escape(line)}</small></p>" for line in explained.failed(explanation)]
    if explanation.search is not None:
        first, *more = explained.search_lines(explanation, explanation.search)
        parts.append(f"<p class=verdict>{escape(first)}</p>")
        parts += [f"<p><code>{escape(line.strip())}</code></p>" for line in more]
    return parts


def footnotes(prediction: Prediction) -> str:
    """What was assumed, what was not counted, and by what versions."""
    versions = ", ".join(f"{name} {version}" for name, version in prediction.versions.items())
    lines = [
        f"assumed: {'; '.join(prediction.assumptions)}" if prediction.assumptions else "",
        f"not counted: {'; '.join(prediction.uncounted)}" if prediction.uncounted else "",
        f"method: {prediction.method}; versions: {versions or 'none'}",
    ]
    return "".join(f"<p><small>{escape(line)}</small></p>" for line in lines if line)


def table(
    head: Sequence[str],
    body: Iterable[Sequence[str]],
    *,
    numbers: set[int],
    total: bool = False,
) -> str:
    """A table; columns in ``numbers`` are aligned to the right."""

    def cells(row: Sequence[str], tag: str) -> str:
        return "".join(
            f"<{tag}{' class=n' if column in numbers else ''}>{_breakable(text)}</{tag}>"
            for column, text in enumerate(row)
        )

    lines = [f"<tr>{cells(row, 'td')}</tr>" for row in body]
    if total:
        lines[-1] = lines[-1].replace("<tr>", "<tr class=total>")
    return (
        f"<table><thead><tr>{cells(head, 'th')}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
    )


def _breakable(text: str) -> str:
    """Settings are long words; a line may end inside them."""
    return escape(text).replace("=", "=<wbr>")


def picture(figure: Figure, caption: str) -> str:
    """A drawing inside the page, as SVG."""
    data = base64.b64encode(plots.save(figure, "svg")).decode()
    words = escape(caption, quote=True)
    return (
        f'<figure><img alt="{words}" src="data:image/svg+xml;base64,{data}">'
        f"<figcaption>{words}</figcaption></figure>"
    )
