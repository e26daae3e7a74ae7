"""``memcalc explain``."""

from pathlib import Path
from typing import Any

import typer
from msgspec.structs import replace

from memcalc.advice.explain.explain import explain_plan
from memcalc.advice.explain.failed_request import align
from memcalc.cli.options import make_plan, with_plan
from memcalc.cli.output import Output, put, width
from memcalc.cli.progress import progress
from memcalc.cli.recipes import format_plan, recipe_output
from memcalc.cli.saved import check_alone, keep_last, locate, plans_in, read_result, traced_in
from memcalc.errors import UsageError
from memcalc.estimation.answers import Answers
from memcalc.estimation.kept import Traced
from memcalc.records.oom_text import OomText
from memcalc.records.plan import Plan
from memcalc.report.explained import HELPFUL, row_words


@with_plan(
    "memcalc explain gpt2 --gpu t4 --batch 64",
    "memcalc explain gpt2 --under '8 GiB'",
    "memcalc explain gpt2 --no-remedies --plot",
    "memcalc explain oom.txt",
    "memcalc explain oom.txt -- python train.py",
)
def command(
    settings: dict[str, Any],
    output: Output,
    words: list[str] | None = None,
    under: int | None = None,
    depth: int | None = None,
    top: int = 8,
    remedies: bool = True,
    plot: bool = False,
    no_cache: bool = False,
) -> None:
    """Show what is alive at the peak, why, and what each remedy really buys.

    In place of MODEL: a result file, last (the last simulated run here), or a log with PyTorch's
    out-of-memory error, such as oom.txt.
    """
    if _explain_oom_text(settings, output, words or []):
        return
    if words:
        raise UsageError(_ONLY_LOGS)
    plan, kept = _read_plan(settings)
    recipe = recipe_output(settings, output.file)
    out = output.choose_format("explanation", beside=recipe is not None)
    with progress(f"explaining {plan.name}") as steps:
        found, stopped = steps.answer_until_stopped(
            lambda seen: explain_plan(
                plan,
                depth=depth,
                remedies=remedies,
                under=under,
                use_cache=not no_cache,
                most=None if out.full else HELPFUL,
                seen=seen,
                saved=kept,
            ),
            row_words,
        )
    out.deliver(found, top=top)
    if stopped:
        raise KeyboardInterrupt
    if plot:
        _print_timeline(plan, Answers(use_cache=not no_cache, saved=kept))
    best = found.search.best if found.search is not None else None
    if recipe is not None:
        changed = best.figures.plan if best and best.figures else plan
        put(format_plan(changed, recipe), output.file)
    if under is not None and best is None:
        raise typer.Exit(1)


_ONLY_LOGS = (
    "Only a log takes a command. Scripts are run by simulate: type memcalc simulate -- python "
    "train.py, then memcalc explain last."
)


def _explain_oom_text(settings: dict[str, Any], output: Output, words: list[str]) -> bool:
    """Explain a log with PyTorch's out-of-memory error; return False if none is named.

    ``words``: the command that wrote it, to be simulated.
    """
    from memcalc.files.oom_text import LOGS, is_oom_text, read

    path = Path(str(settings.get("model") or ""))
    if path.suffix in LOGS and not path.is_file():
        raise UsageError(f"There is no file {path}: save PyTorch's out-of-memory error in it.")
    if path.suffix not in LOGS and not is_oom_text(path):
        return False
    check_alone({**settings, "gpu": None} if words else settings)
    out, found = output.choose_format("out-of-memory"), read(path)
    if words:
        run = _simulate_again(found, words, settings.get("gpu"))
        found = replace(found, run=align(found, run))
    out.deliver(found)
    return True


def _simulate_again(found: OomText, words: list[str], gpu: str | None) -> Traced:
    """Simulate the command that ran out of memory, on its GPU where one alone has its size."""
    from memcalc.cli.simulate import exit_without_gpu_use
    from memcalc.report.oom_text import list_cards
    from memcalc.script.simulate import make_plan as make_command
    from memcalc.script.simulate import simulate

    cards = [gpu] if gpu is not None else list_cards(found)
    run = simulate(make_command(words, gpu=cards[0] if len(cards) == 1 else None))
    if run.traced is None:
        exit_without_gpu_use(run.ending)
    keep_last(run.traced)
    return run.traced


def _read_plan(settings: dict[str, Any]) -> tuple[Plan, list[Traced]]:
    """Return the plan to explain, and the traced commands of a result file named as the model.

    Raises:
        UsageError: the file holds several answers.
    """
    data, plans, kept = read_result(settings.get("model")), list[Plan](), list[Traced]()
    if data is not None:
        check_alone(settings)
    if data is not None and data.get("kind") not in ("measurements", "explanation"):
        path = locate(settings["model"])
        plans, kept = plans_in(data, path, "explain"), traced_in(data, path)
    if len(plans) > 1:
        raise UsageError(f"{settings['model']} holds {len(plans)} answers: explain one of them.")
    return plans[0] if plans else make_plan(settings, "memcalc explain answers for"), kept


def _print_timeline(plan: Plan, answers: Answers) -> None:
    """Print the memory timeline of a plan's step as text."""
    from memcalc.advice.explain.timeline import timeline
    from memcalc.estimation.engine import engine
    from memcalc.report import terminal

    line = timeline(answers.trace(plan).trace, plan, engine.player(plan))
    put(terminal.timeline(line, width=width()))
