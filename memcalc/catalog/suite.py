"""Suites: files that list runs, with settings they share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from memcalc.catalog.launch_files import spelled_out
from memcalc.catalog.plan import make
from memcalc.errors import UsageError
from memcalc.files import shipped, untrusted_values
from memcalc.records.plan import Plan


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
            plans += _spread({**defaults, **run})
        except UsageError as error:
            raise UsageError(f"{path}, run {number}: {error}") from None
    return plans


def _spread(settings: dict[str, Any]) -> list[Plan]:
    settings = spelled_out(settings)
    wanted = settings.get("optim", "adamw")
    names = wanted if isinstance(wanted, list) else [wanted]
    return [make({**settings, "optim": name}) for name in names]
