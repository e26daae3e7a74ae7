"""``memcalc estimate``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec.structs import replace

from memcalc.cli.command import exit_with, no_cache, option, say
from memcalc.cli.options import plans_of, with_plan
from memcalc.cli.output import OUTPUT, VERBOSE, deliver_predictions, format_option
from memcalc.cli.progress import progress
from memcalc.cli.values import METHOD
from memcalc.errors import MemcalcError, UsageError
from memcalc.estimation.estimate import advised, answers
from memcalc.files.formats import chosen
from memcalc.records.prediction import Prediction


@with_plan
@option(
    "--method",
    type=METHOD,
    default="trace",
    help="trace (run the real code on a simulated GPU) or analytic.",
)
@option(
    "--lengths",
    type=str,
    help="Replay a hundred batches of varying length: FILE with one length a line, "
    "normal:MEAN,STD or uniform:A,B; samples are truncated to --seq.",
)
@format_option("predictions")
@OUTPUT
@VERBOSE
@no_cache("answers")
def command(
    settings: dict[str, Any],
    method: str,
    lengths: str | None,
    format: str | None,
    output: Path | None,
    verbose: bool,
    use_cache: bool,
) -> None:
    """Predict what one training step costs, by component and by phase."""
    name = chosen("predictions", format, output)
    plans = plans_of(settings)
    if lengths is not None and (len(plans) > 1 or name == "csv"):
        raise UsageError("--lengths is for one plan, as a table or JSON: name one optimizer.")
    if lengths is not None and method == "analytic":
        raise UsageError("--lengths replays what was traced: leave out --method analytic.")
    found: list[Prediction] = []
    failed: list[MemcalcError] = []
    with progress(f"estimating {plans[0].model}") as steps:
        known = answers(plans, method=method, use_cache=use_cache)
        for number, (plan, answer) in enumerate(zip(plans, known, strict=True), start=1):
            steps.at(number, len(plans))
            if isinstance(answer, Prediction):
                found.append(answer)
            else:
                failed.append(advised(answer, plan, method))
                if len(plans) > 1:
                    say(f"{plan.optim}: {failed[-1]}")
    if not found:
        raise failed[0]
    if lengths is not None:
        found = [_vary(found[0], lengths)]
    deliver_predictions(found, name, output, verbose=verbose)
    if settings.get("optim") == "all":
        # An optimizer that does not take this model is no failure.
        failed = [error for error in failed if not isinstance(error, UsageError)]
    if failed:
        # What was answered is not the whole answer.
        raise exit_with(max(error.exit_code for error in failed))


def _vary(answer: Prediction, lengths: str) -> Prediction:
    from memcalc.estimation.lengths import varied
    from memcalc.records.trace import EQUAL_LENGTHS

    with progress(f"replaying batches of {lengths}"):
        told = tuple(one for one in answer.assumptions if not one.startswith(EQUAL_LENGTHS))
        return replace(answer, varied=varied(answer.plan, lengths), assumptions=told)
