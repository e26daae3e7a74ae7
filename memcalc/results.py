"""The file that measurements are kept in: written whole after every run, so that none is lost."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from memcalc import __version__, artifact
from memcalc.errors import UsageError
from memcalc.records import Measurement, Plan, Prediction


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One plan: what was predicted, and what was measured or why not."""

    plan: Plan
    prediction: Prediction | None = None
    measurement: Measurement | None = None
    error: str | None = None


def save(path: Path, runs: list[Run]) -> None:
    """Write all runs.

    Raises:
        UsageError: the file cannot be written.
    """
    head = {"schema": artifact.SCHEMA, "kind": "measurements", "memcalc": __version__}
    body = {**head, "runs": [artifact.encode(run) for run in runs]}
    artifact.write(path, json.dumps(body, indent=1) + "\n")


def load(path: Path) -> list[Run]:
    """Read runs back.

    Raises:
        UsageError: the file holds no measurements.
    """
    data = artifact.read(path)
    if data.get("kind") != "measurements":
        raise UsageError(f"{path} holds no measurements: give a file that memcalc measure wrote.")
    try:
        return [artifact.decode(Run, run) for run in data["runs"]]
    except (KeyError, TypeError, ValueError, AttributeError):
        raise UsageError(f"{path} is damaged: it holds no runs that can be read.") from None
