"""``memcalc diff``."""

import shlex
from pathlib import Path
from typing import Any

from memcalc.advice.explain.difference import difference
from memcalc.advice.explain.explain import Chapter, chapter, chapter_of_saved
from memcalc.cli.declare import verb
from memcalc.cli.options import make_plans, with_plan
from memcalc.cli.output import Output
from memcalc.cli.progress import progress
from memcalc.cli.saved import only_prediction, read_result
from memcalc.errors import UsageError
from memcalc.estimation.answers import Answers
from memcalc.files import untrusted_values
from memcalc.records.plan import Plan
from memcalc.records.prediction import Prediction


@verb(
    "memcalc diff before.json after.json",
    "memcalc diff 'gpt2 --batch 4' 'gpt2 --batch 4 --checkpointing'",
    "memcalc diff old.toml new.toml -f markdown",
    fetches=True,
)
def command(
    before: str,
    now: str,
    top: int = 8,
    format: str | None = None,
    output: Path | None = None,
    no_cache: bool = False,
) -> None:
    """Show what changed between two answers: by component, phase and module."""
    from memcalc.estimation.question import check

    out = Output(format, output).choose_format("difference")
    files = [(text, read_result(text)) for text in (before, now)]
    asked = [_parse_plan(t) if d is None else only_prediction(d, Path(t)) for t, d in files]
    for one in asked:
        if isinstance(one, Plan) and not one.command:
            check(one)
    answers = Answers(use_cache=not no_cache)
    with progress("comparing") as steps:
        first = _load_chapter(asked[0], answers)
        steps.at(1, 2)
        found = difference(first, _load_chapter(asked[1], answers))
    out.deliver(found, top=top)


def _load_chapter(asked: Prediction | Plan, answers: Answers) -> Chapter:
    """Return the report part of a saved prediction, or of a plan, which is traced."""
    return (
        chapter_of_saved(asked, answers)
        if isinstance(asked, Prediction)
        else chapter(answers.trace(asked))
    )


def _parse_plan(text: str) -> Plan:
    """Make the one plan of a TOML file's path or of command-line words in one text."""
    if text.endswith(".toml") and " -" not in text:
        found = make_plans(untrusted_values.toml(Path(text)))
    else:
        try:
            words = shlex.split(text)
        except ValueError as error:
            raise UsageError(f"{text!r} cannot be read: {error}.") from None
        found = make_plans(_read_options(words))
    if len(found) != 1:
        raise UsageError(f"{text!r} names several optimizers: compare one with one.")
    return found[0]


def _read_options(words: list[str]) -> dict[str, Any]:
    """Parse words as options of ``memcalc estimate`` and return the settings.

    Raises:
        UsageError: of typer: there is no such option.
    """
    taken: list[dict[str, Any]] = []

    def command(settings: dict[str, Any]) -> None:
        taken.append(settings)

    estimate = with_plan()(command)
    with estimate.make_context("memcalc estimate", words) as context:
        estimate.invoke(context)
    return taken[0]
