"""``memcalc init``."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import click
from msgspec.structs import replace

from memcalc.budgets import detect, sizes, starter
from memcalc.budgets.detect import Detected
from memcalc.budgets.read import check_name
from memcalc.budgets.schema import schema
from memcalc.budgets.source import has_section
from memcalc.cli.command import FILE, option
from memcalc.cli.options import plan_of, with_plan
from memcalc.cli.progress import progress
from memcalc.cli.values import METHOD
from memcalc.errors import MemcalcError, UsageError
from memcalc.estimation.estimate import answers
from memcalc.files import artifact
from memcalc.records.plan import Plan
from memcalc.records.prediction import Prediction

TARGET = Path("memcalc.toml")


@with_plan
@option(
    "--from",
    "source",
    type=FILE,
    help="Training configuration to start from: TrainingArguments (JSON, YAML, or a "
    "script that calls them; it is not run), axolotl's or accelerate's YAML. Default: "
    "what is found in this folder.",
)
@option("--margin", default="5%", help="How far above today's estimate limits are.")
@option("--name", help="Name of the run.")
@option("--method", type=METHOD, default="trace", help="trace or analytic.")
@option(
    "--schema", "with_schema", is_flag=True, help=f"Write {starter.SCHEMA_FILE} too, for editors."
)
@option("--force", is_flag=True, help="Overwrite memcalc.toml.")
def command(
    settings: dict[str, Any],
    source: Path | None,
    margin: str,
    name: str | None,
    method: str,
    with_schema: bool,
    force: bool,
) -> None:
    """Write a starter memcalc.toml with budgets from today's estimate."""
    above = sizes.share_or_size(margin).percent
    if above is None:
        raise UsageError(f"--margin {margin!r} is no percentage: write one, as 5%.")
    if name is not None:
        check_name(name)
    _free(force)
    found = _configuration(source, settings)
    if found is not None:
        settings, notes = detect.driven({**found.settings, **settings})
        found = replace(found, unread=(*found.unread, *notes))
    prediction = _estimate(_plan(settings), method)
    text = starter.text(
        starter.Starter(
            prediction=prediction,
            margin=Fraction(above),
            name=name or starter.run_name(prediction.plan.model),
            source=found.file if found is not None else "",
            unread=found.unread if found is not None else (),
            schema=with_schema,
        )
    )
    artifact.write(TARGET, text)
    if with_schema:
        artifact.write(Path(starter.SCHEMA_FILE), json.dumps(schema(), indent=2) + "\n")
    click.echo(text, nl=False)
    click.echo(f"\nWrote {TARGET}. Next: memcalc check --update-baseline, then commit both files.")


def _free(force: bool) -> None:
    if force:
        return
    if TARGET.exists():
        raise UsageError(f"{TARGET} is there already: --force overwrites it.")
    if has_section(Path("pyproject.toml")):
        raise UsageError(
            "pyproject.toml has a [tool.memcalc] already: --force writes a memcalc.toml, which "
            "then counts instead."
        )


def _configuration(source: Path | None, settings: dict[str, Any]) -> Detected | None:
    """The configuration named, or what this folder has where no model is named."""
    if source is not None:
        return detect.read(source)
    if settings.get("model"):
        return None
    found = detect.search(Path.cwd())
    if not found:
        raise UsageError(
            "Which model? Name one (memcalc init gpt2), or run this beside a training "
            "configuration: TrainingArguments, axolotl or accelerate."
        )
    main, more = found[0], [each for each in found[1:] if each.kind == "accelerate"]
    return detect.merge(main, more[0]) if more else main


def _plan(settings: dict[str, Any]) -> Plan:
    if not settings.get("model"):
        raise UsageError(
            "The training configuration names no model: add it, as in memcalc init gpt2 --from "
            "FILE."
        )
    return plan_of(settings, "memcalc init writes a run of")


def _estimate(plan: Plan, method: str) -> Prediction:
    with progress(f"estimating {plan.model}"):
        answer = next(iter(answers([plan], method=method)))
    if isinstance(answer, MemcalcError):
        raise answer
    return answer
