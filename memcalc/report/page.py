"""A report as one self-contained HTML page, and as a notebook's output."""

from __future__ import annotations

import base64
import functools
import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from memcalc import untrusted_text
from memcalc.advice.explain.difference import Difference
from memcalc.advice.explain.explain import Chapter
from memcalc.advice.explain.records import Explanation
from memcalc.files.results import Run
from memcalc.records.prediction import Prediction
from memcalc.report import (
    answer,
    differences,
    drawing,
    explained,
    measured,
    plots,
    predictions,
    rows,
    saved,
    summary,
)
from memcalc.report.blocks import Block, Kind, Line, Picture
from memcalc.report.drawing import Drawing
from memcalc.report.summary import Bars, Hero, hero
from memcalc.version import __version__

if TYPE_CHECKING:
    from jinja2 import Environment


_TOP = 25
Part = Block | Hero | Bars | Drawing


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """A report: chapters of plans, and what belongs to all of them."""

    chapters: tuple[Chapter, ...] = ()
    explanation: Explanation | None = None
    difference: Difference | None = None
    """What changed from the first chapter to the second."""
    runs: tuple[Run, ...] = ()


def render(document: Document) -> str:
    """The whole page."""
    page = _templates().get_template("page.html.j2")
    return page.render(title=_title(document), blocks=_blocks(document), version=__version__) + "\n"


def notebook(record: object) -> str:
    """An answer in full, as a notebook shows it; without matplotlib, its tables alone."""
    heading, *rest = saved.blocks(record, verbose=True, top=sys.maxsize)
    pictures = []
    found = record.prediction if isinstance(record, Explanation) else record
    if isinstance(found, Prediction) and importlib.util.find_spec("matplotlib"):
        pictures.append(
            Picture(plots.save(plots.optimizers([found]), "svg"), "requested bytes at the peak")
        )
    shown = _templates().get_template("blocks.html.j2").module
    return f"<div>{shown.show([heading, *pictures, *rest])}</div>"  # type: ignore[attr-defined]


@functools.cache
def _templates() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup, escape

    def clean(value: Any) -> Any:
        return value if isinstance(value, Markup) else untrusted_text.line(str(value))

    def breakable(text: str) -> Markup:
        """Settings are long words; a line may end inside them."""
        return Markup(escape(untrusted_text.line(text)).replace("=", Markup("=<wbr>")))

    made = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        finalize=clean,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["breakable"] = breakable
    made.filters["json"] = lambda data: json.dumps(data, separators=(",", ":"))
    made.filters["base64"] = lambda data: base64.b64encode(data).decode()
    return made


def _blocks(document: Document) -> Iterator[Part]:
    found = [chapter.prediction for chapter in document.chapters]
    if document.difference is not None:
        yield from differences.blocks(document.difference, _TOP)
    if len(found) > 1:
        yield Line("Side by side", Kind.HEADING)
        yield summary.side_by_side(found)
        yield predictions.comparison(found)
    for chapter in document.chapters:
        if len(found) > 1:
            yield Line(rows.heading(chapter.prediction), Kind.HEADING)
        yield from _chapter(chapter)
    if document.explanation is not None:
        yield Line("What would need less", Kind.HEADING)
        yield from explained.remedies(document.explanation)
    if document.runs:
        yield Line("Estimate against measurement", Kind.HEADING)
        yield summary.accuracy(document.runs)
        yield from measured.blocks(document.runs)


def _title(document: Document) -> str:
    if len(document.chapters) == 1:
        return rows.heading(document.chapters[0].prediction)
    models = dict.fromkeys(
        [c.prediction.plan.name for c in document.chapters]
        + [run.plan.name for run in document.runs]
    )
    return f"memory of training {', '.join(models)}"


def _chapter(chapter: Chapter) -> Iterator[Part]:
    prediction = chapter.prediction
    yield hero(prediction)
    if chapter.line is not None:
        fit = prediction.fit
        limit, gpu = (fit.limit, fit.gpu) if fit is not None else (None, "")
        yield drawing.whole(chapter.line, limit, gpu)
        yield drawing.close_up(chapter.line, limit, gpu)
    yield from (Line(note, Kind.NOTE) for note in chapter.notes)
    yield from answer.of_each_gpu(prediction)
    yield predictions.phases(prediction)
    yield predictions.components(prediction)
    yield from predictions.sent(prediction)
    if chapter.peak is not None:
        yield Line("Alive at the peak", Kind.HEADING)
        yield explained.contents(chapter.peak, _TOP)
    yield from answer.notes(prediction)
    known = ", ".join(f"{name} {version}" for name, version in prediction.versions.items())
    yield Line(f"method: {prediction.method}; versions: {known or 'none'}", Kind.NOTE)
