"""``memcalc init``."""

import shlex
from pathlib import Path
from typing import Any

import typer
from msgspec.structs import replace

from memcalc.budgets import detect, records, starter
from memcalc.budgets.read import OF_COMMANDS, check_name
from memcalc.budgets.source import has_section
from memcalc.catalog import plan as plans
from memcalc.catalog.settings import merge_recipe
from memcalc.cli.command import say
from memcalc.cli.options import make_plan, with_plan
from memcalc.cli.progress import progress
from memcalc.dialects import Recipe, accelerate
from memcalc.errors import EstimateError, MemcalcError, UsageError
from memcalc.estimation.estimate import answers
from memcalc.files import artifact, shipped
from memcalc.records.prediction import Prediction

TARGET = Path("memcalc.toml")


@with_plan(
    "memcalc init gpt2",
    "memcalc init gpt2 --gpu t4 --batch 16",
    "memcalc init --gpu t4 -- python train.py --epochs 1",
)
def command(
    settings: dict[str, Any],
    arguments: list[str] | None = None,
    source: Path | None = None,
    margin: str = "5%",
    name: str | None = None,
    method: str = "trace",
    with_schema: bool = False,
    force: bool = False,
) -> None:
    """Write a starter memcalc.toml with budgets from today's estimate."""
    above = records.share_or_size(margin).percent
    if above is None:
        raise UsageError(f"--margin {margin!r} is no percentage: write one, as 5%.")
    if name is not None:
        check_name(name)
    _free(force)
    if arguments:
        found = None
        prediction = _simulate_command([settings.pop("model"), *arguments], settings)
    elif source is None and not settings.get("model") and (scripts := _find_scripts()):
        _publish(starter.of_scripts(scripts, settings.get("gpu"), schema=with_schema), with_schema)
        return
    else:
        found = _find_configuration(source, settings)
        if found is not None:
            settings = merge_recipe(found, settings)
            found = replace(found, unread=settings.get("unread", ()))
        prediction = _estimate_plan(settings, method)
        if found is not None and source is None:
            _tell_left_out(found)
    plan = prediction.plan
    usual = starter.command_name(plan.command) if plan.command else starter.run_name(plan.model)
    _publish(starter.text(prediction, name or usual, above, found, schema=with_schema), with_schema)


def _publish(text: str, with_schema: bool) -> None:
    """Write memcalc.toml, and its schema file if asked, and print the text."""
    artifact.write(TARGET, text)
    if with_schema:
        shown = shipped.configs() / starter.SCHEMA_FILE
        artifact.write_bytes(Path(starter.SCHEMA_FILE), shown.read_bytes())
    typer.echo(text, nl=False)
    typer.echo(f"\nWrote {TARGET}. Next: memcalc check --update-baseline, then commit both files.")


def _find_scripts() -> list[Path]:
    """Return this folder's training scripts, or none if a configuration names a model."""
    if any("model" in found.settings for found in detect.search(Path.cwd())):
        return []
    return detect.scripts(Path.cwd())


def _tell_left_out(taken: Recipe) -> None:
    """Print which recipes and scripts of this folder get no run, beside the recipe that does."""
    recipes = [one.file for one in detect.search(Path.cwd()) if "model" in one.settings]
    found = (*recipes, *map(str, detect.scripts(Path.cwd())))
    left = [one for one in found if one not in taken.file.split(" and ")]
    if left:
        say(
            f"memcalc: {TARGET} has no run of {', '.join(left)}: add a [runs.NAME] for each, with "
            'recipe = "FILE" or command = "python FILE".'
        )


def _simulate_command(words: list[str], settings: dict[str, Any]) -> Prediction:
    """Return the prediction of a command that was typed in place of a model."""
    from memcalc.budgets.collect import simulate_command
    from memcalc.script.command import find_launched

    other = [key for key in settings if key not in OF_COMMANDS]
    if other:
        raise UsageError(
            f"{other[0]} is for runs of a model: beside a command there are gpu, torch and "
            "alloc_conf."
        )
    plan = plans.make({**settings, "command": shlex.join(words)})
    find_launched(plan)
    with progress(f"simulating {plan.command}"):
        found = simulate_command(plan, Path.cwd(), starter.command_name(plan.name))
    if found.prediction is None:
        raise EstimateError(f"{plan.command}: {str(found.error).rstrip('.')}.")
    return found.prediction


def _free(force: bool) -> None:
    """Raise UsageError if budgets exist here already, unless forced."""
    if force:
        return
    if TARGET.exists():
        raise UsageError(f"{TARGET} is there already: --force overwrites it.")
    if has_section(Path("pyproject.toml")):
        raise UsageError(
            "pyproject.toml has a [tool.memcalc] already: --force writes a memcalc.toml, which "
            "then counts instead."
        )


def _find_configuration(source: Path | None, settings: dict[str, Any]) -> Recipe | None:
    """Return the configuration named, or this folder's if no model is named."""
    if source is not None:
        return detect.read(source)
    if settings.get("model"):
        return None
    found = detect.search(Path.cwd())
    if not found:
        raise UsageError(
            "Which model? Name one (memcalc init gpt2) or a command (memcalc init -- python "
            "train.py), or run this beside a recipe of a training framework."
        )
    main, more = found[0], [each for each in found[1:] if each.dialect == accelerate.NAME]
    return detect.merge(main, more[0]) if more else main


def _estimate_plan(settings: dict[str, Any], method: str) -> Prediction:
    plan = make_plan(settings, "memcalc init writes a run of")
    with progress(f"estimating {plan.model}"):
        answer = next(iter(answers([plan], method=method)))
    if isinstance(answer, MemcalcError):
        raise answer
    return answer
