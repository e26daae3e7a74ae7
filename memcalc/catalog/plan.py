"""Makes a Plan from a user's settings, or says in a sentence what is wrong."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from memcalc.catalog import gpus
from memcalc.catalog.launch_files import many, spelled_out
from memcalc.errors import SettingError, UsageError, unknown
from memcalc.files import shipped, untrusted_values
from memcalc.records.compact_options import input_of
from memcalc.records.disagreement import disagreement
from memcalc.records.fields import FIELDS
from memcalc.records.names import ZERO_STAGES
from memcalc.records.plan import Plan

TRAINER_OPTIM = "adamw_torch_fused"
"""``TrainingArguments.optim`` by default (transformers 5.23, training_args.py)."""


def make(settings: Mapping[str, Any]) -> Plan:
    """Check settings and make a plan of them; keys are those of ``Plan``, dashes allowed.

    Raises:
        UsageError: an unknown key, a value of the wrong type or out of range, a missing model, or
            settings that do not go together.
    """
    checked: dict[str, Any] = {}
    for name, value in spelled_out(settings).items():
        if name not in FIELDS:
            raise unknown("setting", name, FIELDS, hint="see memcalc estimate --help.")
        if value is not None:
            checked[name] = FIELDS[name].check(value)
    if not checked.get("model") and "command" not in checked:
        raise UsageError("Which model? Name one: memcalc list models shows those that are bundled.")
    if checked.get("inputs"):
        checked["batch"] = _samples(checked)
    checked.pop("preset", None)
    if checked.get("loop") == "trainer" and not checked.get("optim_in_backward"):
        checked.setdefault("optim", TRAINER_OPTIM)
    if checked.get("parallel") in ZERO_STAGES:
        # ``bf16.enabled`` is what is meant where nobody says more.
        checked.setdefault("precision", "amp-bf16")
    plan = Plan(**_several(checked))
    wrong = disagreement(plan)
    if wrong is not None:
        raise UsageError(wrong)
    return plan


def _several(checked: dict[str, Any]) -> dict[str, Any]:
    """``8xh100`` says how many GPUs and which, and so do names of machines that are rented."""
    count, name = many(checked.get("gpu") or "")
    if count is not None:
        if checked.get("devices", count) != count:
            raise SettingError(
                "devices", f"devices = {checked['devices']} and gpu = {checked['gpu']!r} differ."
            )
        checked = {**checked, "devices": FIELDS["devices"].check(count), "gpu": name}
    with contextlib.suppress(UsageError):
        # Whoever checks the plan says of a name that it is unknown.
        taken = gpus.meant(name)
        if taken.why:
            there = taken.count if checked.get("target") != "cpu" else None
            return {"devices": there or 1, **checked, "gpu": taken.gpu.name}
    return checked


def taken_as(settings: Mapping[str, Any]) -> str:
    """Which GPU a name is taken for where it could be another; empty: it says so itself."""
    name = many(str(settings.get("gpu") or ""))[1]
    with contextlib.suppress(UsageError):
        taken = gpus.meant(name)
        count = f"{taken.count} x " if (taken.count or 1) > 1 else ""
        return f"{name} is taken as {count}{taken.gpu.name}, {taken.why}" if taken.why else ""
    return ""


def _samples(checked: Mapping[str, Any]) -> int:
    """Samples in a described batch: the first size of its first input.

    Raises:
        SettingError: another number was given as well, no batch is that large, or an input is
            described twice.
    """
    described = [input_of(text) for text in checked["inputs"]]
    names = [name for name, _, _ in described]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise SettingError("inputs", f"input describes {twice} twice: describe it once.")
    samples = next((shape[0] for _, _, shape in described if shape), 1)
    try:
        FIELDS["batch"].check(samples)
    except SettingError as error:
        raise SettingError("inputs", f"The first size of an input is its batch: {error}") from None
    if checked.get("batch", samples) != samples:
        raise SettingError(
            "batch",
            f"batch = {checked['batch']}, but the inputs describe {samples} samples: leave batch "
            "out, or describe inputs of that size.",
        )
    return samples


def load(path: Path) -> list[Plan]:
    """Read a suite: ``[defaults]`` and a list of ``[[run]]``, each with the keys of a plan.

    A list under ``optim`` makes one run for each. A bare name that is no file here, such as
    ``community``, is one that memcalc brings along.

    Raises:
        UsageError: the file cannot be read, holds no runs, or a run is not understood.
    """
    brought = shipped.configs() / "suites" / f"{path}.toml"
    if path.parent == Path() and not os.path.exists(path) and os.path.isfile(brought):
        path = brought
    data = untrusted_values.toml(path)
    defaults, runs = data.get("defaults", {}), data.get("run", [])
    if not isinstance(runs, list) or not runs or not isinstance(defaults, dict):
        raise UsageError(f"{path} lists no runs: write [[run]] with a model for each.")
    plans: list[Plan] = []
    for number, run in enumerate(runs, start=1):
        try:
            if not isinstance(run, dict):
                raise UsageError("it is no table: write [[run]] and its keys below.")
            settings = spelled_out({**defaults, **run})
            wanted = settings.get("optim", "adamw")
            names = wanted if isinstance(wanted, list) else [wanted]
            plans += [make({**settings, "optim": name}) for name in names]
        except UsageError as error:
            raise UsageError(f"{path}, run {number}: {error}") from None
    return plans


def to_simulate(plan: Plan, options: str = "", command: str | None = None) -> str:
    """What to type to run a plan's command, or one like it, on its GPU."""
    gpu = f"--gpu {shlex.quote(plan.gpu)} " if plan.gpu else ""
    return f"memcalc simulate {gpu}{options}-- {command or plan.command}"
