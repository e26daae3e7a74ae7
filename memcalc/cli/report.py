"""``memcalc report``."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from memcalc.advice.explain.difference import difference
from memcalc.advice.explain.explain import Chapter, chapter, chapter_of_saved, explain_plan
from memcalc.cli.command import say
from memcalc.cli.options import make_plans, with_plan
from memcalc.cli.output import chosen, put, wrote
from memcalc.cli.progress import progress
from memcalc.cli.saved import check_alone, locate, only_prediction, plans_in, read_result, traced_in
from memcalc.errors import MemcalcError, UsageError
from memcalc.estimation.answers import Answers
from memcalc.estimation.kept import Traced
from memcalc.files import artifact
from memcalc.files.results import load, predictions
from memcalc.records.plan import Plan
from memcalc.report.page import Document


@with_plan(
    "memcalc report gpt2 --gpu t4 -o step.html",
    "memcalc report gpt2 -o step.svg",
    "memcalc report gpt2 -o step.pickle   # for pytorch.org/memory_viz",
)
def command(
    settings: dict[str, Any],
    other: str | None = None,
    output: Path | None = None,
    depth: int | None = None,
    remedies: bool = True,
    no_cache: bool = False,
) -> None:
    """Draw a step's timeline and all figures on one page; of a model, or of a file memcalc wrote.

    In place of a model, give what memcalc estimate, explain or measure wrote as JSON; with two
    such answers the page begins with what changed.
    """
    if output is None:
        raise UsageError("Where to? Type --output report.html.")
    name = chosen("page", None, output)
    data = read_result(settings.get("model"))
    if data is not None or other is not None:
        check_alone(settings)
    if other is not None and name == "pickle":
        raise UsageError("A snapshot is of one answer: name one file.")
    explanation = None
    if data is None and remedies and name == "html" and len(plans := make_plans(settings)) == 1:
        with progress(f"explaining {plans[0].name}"):
            explanation = explain_plan(plans[0], depth=depth, use_cache=not no_cache)
    counted = explanation is not None
    named = [(read_result(file), locate(file)) for file in (settings.get("model"), other) if file]
    kept = [one for data_of, file in named for one in traced_in(data_of, file)]
    answers = Answers(use_cache=not no_cache, counted=counted, saved=kept)
    with progress("drawing"):
        if other is not None:
            before, now = (_to_chapter(file, answers, depth) for file in (settings["model"], other))
            document = Document(chapters=(before, now), difference=difference(before, now))
        elif name == "pickle":
            path = Path(str(settings.get("model")))
            asked = make_plans(settings) if data is None else plans_in(data, path, "report")
            if len(asked) != 1:
                raise UsageError("One plan makes one snapshot: give each option one value.")
            draw(answers.trace(asked[0]), name, output)
            return
        elif data is None:
            chapters = _trace_plans(make_plans(settings), answers, depth)
            document = Document(chapters=chapters, explanation=explanation)
        else:
            document = _to_document(data, Path(str(settings["model"])), answers, depth)
    _write_document(document, name, output)


def _to_chapter(file: str, answers: Answers, depth: int | None) -> Chapter:
    """Return the report part of a saved answer's file."""
    data = read_result(file)
    if data is None or data.get("kind") == "measurements":
        raise UsageError(f"{file} is no answer that memcalc wrote: compare two .json files of it.")
    return chapter_of_saved(only_prediction(data, Path(file)), answers, depth=depth)


def draw(traced: Traced, name: str, output: Path) -> None:
    """Write a traced plan as an HTML page, a picture or a memory snapshot."""
    if name == "pickle":
        from memcalc.advice.explain.timeline import save_predicted_snapshot
        from memcalc.estimation.engine import engine

        save_predicted_snapshot(traced, output, engine.player(traced.prediction.plan))
        wrote(output)
        return
    _write_document(Document(chapters=(chapter(traced),)), name, output)


def _trace_plans(plans: Sequence[Plan], answers: Answers, depth: int | None) -> tuple[Chapter, ...]:
    found: list[Chapter] = []
    failed: list[MemcalcError] = []
    for plan in plans:
        try:
            found.append(chapter(answers.trace(plan), depth=depth))
        except MemcalcError as error:
            failed.append(error)
            if len(plans) > 1:
                say(f"{plan.optim}: {error}")
    if not found:
        raise failed[0]
    return tuple(found)


def _to_document(data: dict[str, Any], path: Path, answers: Answers, depth: int | None) -> Document:
    """Return the contents of a report about a file of saved results."""
    from memcalc.report.saved import read

    if data.get("kind") == "measurements":
        return Document(runs=tuple(load(path)))
    if data.get("kind") == "explanation":
        explanation = read(data, path)
        first = chapter_of_saved(explanation.prediction, answers, depth=depth)
        return Document(chapters=(first,), explanation=explanation)
    chapters = tuple(chapter_of_saved(one, answers, depth=depth) for one in predictions(data, path))
    return Document(chapters=chapters)


def _write_document(document: Document, name: str, output: Path) -> None:
    """Write a report as an HTML page, or its main figure as a picture."""
    if name == "html":
        from memcalc.report import page

        put(page.render(document), output)
        return
    from memcalc.report import plots

    if document.runs:
        figure = plots.accuracy(document.runs)
    elif len(document.chapters) > 1:
        figure = plots.optimizers([one.prediction for one in document.chapters])
    else:
        one = document.chapters[0]
        if one.line is None:
            raise UsageError(f"There is no timeline to draw: {'; '.join(one.notes)}.")
        from memcalc.report.rows import heading

        figure = plots.timeline(one.line, heading(one.prediction), one.prediction.fit)
    artifact.write_bytes(output, plots.save(figure, name))
    wrote(output)
