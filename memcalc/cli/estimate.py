"""``memcalc estimate``."""

from typing import Any

import typer
from msgspec.structs import replace

from memcalc.cli.command import say
from memcalc.cli.options import make_plans, with_plan
from memcalc.cli.output import Output, put
from memcalc.cli.progress import progress
from memcalc.cli.recipes import format_plan, recipe_output
from memcalc.errors import MemcalcError, UsageError
from memcalc.estimation.estimate import add_advice, answers
from memcalc.records.plan import Plan
from memcalc.records.prediction import Prediction
from memcalc.records.trace import EMULATED
from memcalc.report.rows import name_differences
from memcalc.units import format_bytes


def _compare_with_fp16(found: Prediction) -> Prediction:
    """Add fp16's memory to a prediction in bf16 that the GPU emulates."""
    told = next((one for one in found.assumptions if one.startswith(EMULATED)), None)
    precision = "fp16" if found.plan.precision == "bf16" else "amp-fp16"
    if told is None or found.method != "trace":
        return found
    with progress(f"estimating {found.plan.model} in fp16"):
        (beside,) = answers([replace(found.plan, precision=precision)], method="trace")
    if not isinstance(beside, Prediction) or beside.fit is None:
        return found
    words = f"{told}: --precision {precision} needs {format_bytes(beside.fit.needed)}"
    rest = (one for one in found.assumptions if one != told)
    return replace(found, assumptions=(words, *rest))


@with_plan(
    "memcalc estimate gpt2 --gpu t4",
    "memcalc estimate meta-llama/Llama-3.1-8B --preset qlora --gpu 4090",
    "memcalc estimate gpt2 --optim adamw,adam8bit,adafactor",
    "memcalc estimate axolotl.yaml --gpu 4090",
    "memcalc estimate gpt2 --precision amp-bf16 -o train.py",
)
def command(
    settings: dict[str, Any],
    output: Output,
    method: str = "trace",
    lengths: str | None = None,
    no_cache: bool = False,
) -> None:
    """Predict what one training step costs, by component and by phase."""
    file = output.file
    recipe = recipe_output(settings, file)
    beside = recipe is not None or (file is not None and file.suffix == ".py")
    out = output.choose_format("predictions", beside=beside)
    plans = make_plans(settings)
    if beside and len(plans) > 1:
        raise UsageError("A recipe or script is of one plan: give each option one value.")
    if lengths is not None:
        _check_lengths(lengths, plans, out.format, method)
    found: list[Prediction] = []
    failed: list[MemcalcError] = []
    with progress(f"estimating {plans[0].model}") as steps:
        known = answers(plans, method=method, use_cache=not no_cache)
        for number, (plan, answer) in enumerate(zip(plans, known, strict=True), start=1):
            steps.at(number, len(plans))
            if isinstance(answer, Prediction):
                found.append(answer)
            else:
                failed.append(add_advice(answer, plan, method))
                if len(plans) > 1:
                    say(f"{name_differences(plan, plans)}: {failed[-1]}")
    if not found:
        raise failed[0]
    if lengths is not None:
        found = [_replay_lengths(found[0], lengths)]
    found = [_compare_with_fp16(one) for one in found] if len(found) == 1 else found
    out.deliver(found)
    if beside:
        # What no script expresses is said beside the answer, which is kept.
        put(format_plan(found[0].plan, recipe), file)
    if settings.get("optim") == "all":
        # An optimizer that does not take this model is no failure.
        failed = [error for error in failed if not isinstance(error, UsageError)]
    if failed:
        # What was answered is not the whole answer.
        raise typer.Exit(max(error.exit_code for error in failed))


def _check_lengths(lengths: str, plans: list[Plan], name: str | None, method: str) -> None:
    """Raise UsageError for ``--lengths`` that cannot be replayed, before anything runs."""
    from memcalc.estimation.lengths import samples

    if len(plans) > 1 or name == "csv":
        raise UsageError(
            "--lengths is for one plan, as a table or JSON: give each option one value."
        )
    if method == "analytic":
        raise UsageError("--lengths replays what was traced: leave out --method analytic.")
    samples(lengths, 1, None)


def _replay_lengths(answer: Prediction, lengths: str) -> Prediction:
    """Return the prediction with its memory over batches of varying length."""
    from memcalc.estimation.lengths import run_varying_lengths
    from memcalc.records.trace import EQUAL_LENGTHS

    with progress(f"replaying batches of {lengths}"):
        told = tuple(one for one in answer.assumptions if not one.startswith(EQUAL_LENGTHS))
        return replace(answer, varied=run_varying_lengths(answer.plan, lengths), assumptions=told)
