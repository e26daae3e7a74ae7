"""A report as one HTML page that needs nothing beside itself: no network, no script."""

from __future__ import annotations

from html import escape

from memcalc.explanation.chapters import Chapter, Document
from memcalc.report import page_parts as pieces
from memcalc.report import plots, rows
from memcalc.units import format_bytes
from memcalc.version import __version__

_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; color: #111; background: #fff;
       max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
img { width: 100%; height: auto; }
table { border-collapse: collapse; width: 100%; font-size: 0.87rem; margin: 1rem 0; }
th, td { text-align: left; padding: 0.2rem 0.6rem 0.2rem 0; vertical-align: top;
         border-bottom: 1px solid #ddd; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
tr.total td { font-weight: 600; border-bottom: none; }
code { font-size: 0.95em; overflow-wrap: anywhere; }
small, .dim { color: #444; } .verdict { font-weight: 600; }
figure { margin: 1rem 0; } figcaption { font-size: 0.87rem; color: #444; }
@media print { body { margin: 0; max-width: none; font-size: 10pt; }
  figure, tr { break-inside: avoid; } h2 { break-after: avoid; } }
"""


def render(document: Document) -> str:
    """The whole page.

    Raises:
        UsageError: matplotlib is not installed.
    """
    title = _title(document)
    parts = [f"<h1>{escape(title)}</h1>"]
    predictions = [chapter.prediction for chapter in document.chapters]
    if len(predictions) > 1:
        figure = plots.optimizers(predictions)
        parts += ["<h2>Side by side</h2>", pieces.picture(figure, "requested bytes at each peak")]
        parts.append(pieces.comparison(predictions))
    for chapter in document.chapters:
        parts += _chapter(chapter, alone=len(document.chapters) == 1)
    if document.explanation is not None:
        parts += pieces.remedies(document.explanation)
    if document.runs:
        parts += ["<h2>Estimate against measurement</h2>"]
        caption = "peak of allocated bytes, estimated and measured; the error beside it"
        parts.append(pieces.picture(plots.accuracy(document.runs), caption))
    parts.append(f"<p class=dim>memcalc {escape(__version__)}</p>")
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def _title(document: Document) -> str:
    if len(document.chapters) == 1:
        return rows.heading(document.chapters[0].prediction)
    models = dict.fromkeys(
        [c.prediction.plan.name for c in document.chapters]
        + [run.plan.name for run in document.runs]
    )
    return f"memory of training {', '.join(models)}"


def _chapter(chapter: Chapter, *, alone: bool) -> list[str]:
    prediction = chapter.prediction
    parts = [] if alone else [f"<h2>{escape(rows.heading(prediction))}</h2>"]
    verdict = rows.verdict(prediction)
    parts += [f"<p class=verdict>{escape(verdict)}</p>"] if verdict else []
    if prediction.peak.allocated is not None:
        caption = "what is asked for, held in blocks, held of the driver, and held by the process"
        parts.append(pieces.picture(plots.ladder(prediction), f"the ladder at the peak: {caption}"))
    if chapter.line is not None:
        title = f"peak in {prediction.peak.phase.value}: "
        title += f"{format_bytes(prediction.peak.requested)} requested"
        caption = "requested bytes by component over one steady step, with the allocator's lines"
        parts.append(pieces.picture(plots.timeline(chapter.line, title), caption))
    parts += [f"<p><small>{escape(note)}</small></p>" for note in chapter.notes]
    parts.append(pieces.phases(prediction))
    parts.append(pieces.components(prediction))
    if chapter.peak is not None:
        parts.append(pieces.peak(chapter.peak))
    parts.append(pieces.footnotes(prediction))
    return parts
