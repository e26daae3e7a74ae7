"""A report as one self-contained HTML page, and as a notebook's output."""

from __future__ import annotations

import base64
import functools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from memcalc import untrusted_text
from memcalc.accuracy.compare import pairs as compared
from memcalc.advice.explain.difference import Difference
from memcalc.advice.explain.explain import Chapter
from memcalc.advice.explain.records import Explanation
from memcalc.files.results import Run
from memcalc.records.fields import options
from memcalc.records.prediction import FitVerdict, Prediction
from memcalc.report import answer, drawing, explained, measured, plots, predictions, rows, saved
from memcalc.report.blocks import WORD, Block, Kind, Line, Picture
from memcalc.report.drawing import Drawing
from memcalc.report.rows import STYLES
from memcalc.units import format_bytes, unit_for
from memcalc.version import __version__
from memcalc.wrap import MAY_BREAK, parted

if TYPE_CHECKING:
    from jinja2 import Environment
    from matplotlib.figure import Figure

_CACHED, _OUTSIDE, _FREE = "#B8B8B8", "#7F7F7F", "transparent"


Part = tuple[float, str, str]
"""A stretch of a bar: percent of the whole, color, and text."""


class Hero(msgspec.Struct, frozen=True, kw_only=True):
    """The head of a page."""

    kind: str
    """``fits``, ``close``, ``over`` or ``plain``: how the verdict is colored."""
    verdict: str
    parts: tuple[Part, ...]
    figures: tuple[tuple[str, str], ...]
    command: str
    """The next command; empty: none."""


_KINDS = {
    FitVerdict.FITS: "fits",
    FitVerdict.TIGHT: "close",
    FitVerdict.LEAKS: "over",
    FitVerdict.DOES_NOT_FIT: "over",
}


def hero(prediction: Prediction) -> Hero:
    """Return the head of a prediction's page: verdict, bar of the card, main figures."""
    fit, peak = prediction.fit, prediction.peak
    figures = [(f"peak, in {peak.phase.value}", format_bytes(peak.allocated or peak.requested))]
    if peak.reserved is not None:
        figures.append(("reserved by PyTorch", format_bytes(peak.reserved)))
    if prediction.context is not None and peak.reserved is not None:
        name, _, ends = rows.would_need(prediction).replace("need ", "need: ").partition(": ")
        figures.append((name, ends))
    plan = prediction.plan
    return Hero(
        kind=_KINDS[fit.verdict] if fit is not None else "plain",
        verdict=answer.headline(prediction).text,
        parts=_divide_bar(prediction),
        figures=tuple(figures),
        command="" if plan.command else f"memcalc explain {options(plan)}",
    )


def _divide_bar(prediction: Prediction) -> tuple[Part, ...]:
    """Return the parts of the memory bar: components, allocator's cache, context, free."""
    peak = prediction.peak
    reserved = peak.requested if peak.reserved is None else peak.reserved
    used = reserved if peak.process_used is None else peak.process_used
    top = max(used, prediction.fit.limit) if prediction.fit is not None else used
    found = [(one.words, prediction.components.get(c, 0), one.color) for c, one in STYLES.items()]
    found += [
        ("kept by the allocator", reserved - peak.requested, _CACHED),
        ("CUDA context and libraries", used - reserved, _OUTSIDE),
        ("free", top - used, _FREE),
    ]
    unit = unit_for(top)
    return tuple(
        (100 * size / max(top, 1), color, f"{words} {unit.number(size)} {unit.name}")
        for words, size, color in found
        if size
    )


_TOP = 25
PagePart = Block | Hero | Drawing


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """A report: chapters of plans, and what belongs to all of them."""

    chapters: tuple[Chapter, ...] = ()
    explanation: Explanation | None = None
    difference: Difference | None = None
    """What changed from the first chapter to the second."""
    runs: tuple[Run, ...] = ()


def render(document: Document) -> str:
    """Return a report as one HTML page."""
    page = _load_templates().get_template("page.html.j2")
    return (
        page.render(title=_make_title(document), blocks=_list_blocks(document), version=__version__)
        + "\n"
    )


def notebook(record: object) -> str:
    """Return an answer as HTML for a notebook: the head of the page, and all tables."""
    first: PagePart
    first, *rest = saved.blocks(record, verbose=True, top=sys.maxsize)
    found = record.prediction if isinstance(record, Explanation) else record
    if isinstance(found, Prediction) and found.serving is None:
        # What the page says beside it stands in the tables here.
        first = replace(hero(found), command="")
    return _load_templates().get_template("notebook.html.j2").render(blocks=[first, *rest])


@functools.cache
def _load_templates() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup, escape

    def clean(value: Any) -> Any:
        return value if isinstance(value, Markup) else untrusted_text.line(str(value))

    def breakable(text: str) -> Markup:
        """Return text whose lines may break inside settings: long words."""
        shown = escape(parted(untrusted_text.line(text)))
        return Markup(shown.replace("=", Markup("=<wbr>")).replace(MAY_BREAK, Markup("<wbr>")))

    made = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        finalize=clean,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )

    def command(text: str) -> Markup:
        """Return a command whose lines break between options, not inside one."""
        words = map(escape, WORD.findall(untrusted_text.line(text)))
        return Markup(" ").join(Markup("<span>{}</span>").format(word) for word in words)

    made.filters |= {"breakable": breakable, "command": command, "bytes": format_bytes}
    made.filters["json"] = lambda data: json.dumps(data, separators=(",", ":"))
    made.filters["base64"] = lambda data: base64.b64encode(data).decode()
    made.globals |= {"width": drawing.WIDTH, "height": drawing.HEIGHT}
    return made


def _list_blocks(document: Document) -> Iterator[PagePart]:
    found = [chapter.prediction for chapter in document.chapters]
    if document.difference is not None:
        yield from explained.difference_blocks(document.difference, _TOP, more="")
    if len(found) > 1:
        yield Line("Side by side", Kind.HEADING)
        yield _render_picture(plots.optimizers(found), "requested bytes at each peak")
        yield predictions.comparison(found)
    for chapter in document.chapters:
        if len(found) > 1:
            yield Line(rows.heading(chapter.prediction), Kind.HEADING)
        yield from _list_chapter(chapter, advised=document.explanation is not None)
    if document.explanation is not None:
        yield Line("What would need less", Kind.HEADING)
        yield from explained.remedies(document.explanation)
    if document.runs:
        yield Line("Estimate against measurement", Kind.HEADING)
        # Of runs on the CPU, PyTorch's allocator is not known.
        for rung in ("allocated", "requested"):
            if compared(document.runs, rung):
                figure = plots.accuracy(document.runs, rung)
                yield _render_picture(figure, "peak of each run, estimated and measured")
                break
        yield from measured.blocks(document.runs)


def _render_picture(figure: Figure, caption: str) -> Picture:
    return Picture(plots.save(figure, "svg"), caption)


def _make_title(document: Document) -> str:
    if len(document.chapters) == 1:
        return rows.heading(document.chapters[0].prediction)
    models = dict.fromkeys(
        [c.prediction.plan.name for c in document.chapters]
        + [run.plan.name for run in document.runs]
    )
    return f"memory of training {', '.join(models)}"


def _list_chapter(chapter: Chapter, *, advised: bool) -> Iterator[PagePart]:
    """Yield a plan's part of the page; ``advised``: the page has remedies already."""
    prediction = chapter.prediction
    yield replace(hero(prediction), command="") if advised else hero(prediction)
    if chapter.line is not None:
        yield drawing.whole(chapter.line, prediction.fit)
        yield drawing.close_up(chapter.line, prediction.fit)
    yield from (Line(note, Kind.NOTE) for note in chapter.notes)
    yield from answer.of_each_gpu(prediction)
    yield from answer.of_each_rank(prediction)
    yield predictions.phases(prediction)
    yield predictions.components(prediction)
    yield from predictions.sent(prediction)
    if chapter.peak is not None:
        yield Line("Alive at the peak", Kind.HEADING)
        yield explained.contents(chapter.peak, _TOP, more="")
    yield from answer.notes(prediction)
    known = ", ".join(f"{name} {version}" for name, version in prediction.versions.items())
    yield Line(f"method: {prediction.method}; versions: {known or 'none'}", Kind.NOTE)
