"""The committed baseline: figures, plans and versions, written so that a diff shows what changed.

A JSON object with ``schema`` (1), ``kind`` (``baseline``), ``versions`` of libraries, and ``runs``
by name, each with its ``plan`` (what differs from the defaults), ``source``, ``parameters`` and
``figures`` in bytes. Keys are sorted and nothing depends on time or machine.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from memcalc import untrusted_text
from memcalc.budgets.metrics import figures, parameters
from memcalc.budgets.read import rebase
from memcalc.budgets.records import Baseline, BudgetedRun, Evidence, Known
from memcalc.errors import UsageError
from memcalc.files import artifact
from memcalc.files.untrusted_values import reason
from memcalc.records.fields import changed_settings
from memcalc.records.plan import Plan
from memcalc.version import PACKAGES, __version__, find_version


def read(path: Path) -> Baseline | None:
    """Read a committed baseline file, or return None if it is missing.

    Raises:
        UsageError: the file is not a baseline that can be read, or no file can have this name.
    """
    try:
        os.stat(path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise UsageError(f"Cannot read {path}: {reason(error)}.") from None
    data = artifact.read(path)
    if data.get("kind") != "baseline":
        hint = "memcalc check --update-baseline writes one."
        raise UsageError(f"{path} is not a baseline: {hint}")
    return replace(artifact.part(Baseline, data, path, "baseline"), path=str(path))


def make(
    path: Path, runs: Sequence[BudgetedRun], found: Sequence[Evidence], versions: dict[str, str]
) -> Baseline:
    """Make a baseline from the figures of these runs, without runs that failed."""
    known = {}
    for run, evidence in zip(runs, found, strict=True):
        count = parameters(evidence)
        if count is not None:
            known[run.name] = Known(
                plan=brief(run.plan, path.parent),
                source=source(evidence),
                figures=figures(evidence),
                parameters=count,
            )
    return Baseline(path=str(path), versions=versions, runs=known)


def write(baseline: Baseline) -> None:
    """Write a baseline as JSON to its path; the same figures give the same bytes.

    Raises:
        UsageError: the file cannot be written.
    """
    body = {
        "schema": artifact.SCHEMA,
        "kind": "baseline",
        "versions": baseline.versions,
        "runs": artifact.encode(baseline.runs),
    }
    text = json.dumps(body, indent=2, sort_keys=True, ensure_ascii=False)
    artifact.write(Path(baseline.path), untrusted_text.json(text) + "\n")


def source(evidence: Evidence) -> str:
    """Return how the peak was found: ``trace``, ``analytic``, or the device that measured it."""
    if evidence.measurement is not None:
        return f"measured on {evidence.measurement.device}"
    return evidence.prediction.method if evidence.prediction is not None else "unknown"


def brief(plan: Plan, folder: Path) -> dict[str, object]:
    """Return a plan's settings that are not defaults, with a model file relative to ``folder``."""
    moved = replace(plan, model=rebase(plan.model, Path(), folder))
    settings: dict[str, object] = artifact.encode(changed_settings(moved))
    return settings


def find_versions(found: Sequence[Evidence]) -> dict[str, str]:
    """Return the library versions of the runs, or the installed ones where runs name none.

    Builds of one version for different devices (``+cpu``, ``+cu130``) count as that version.
    """
    versions = {"memcalc": __version__}
    for package in PACKAGES:
        if (version := find_version(package)) is not None:
            versions[package] = version
    for evidence in found:
        found_by = evidence.measurement or evidence.prediction
        if found_by is not None:
            versions |= {k: v for k, v in found_by.versions.items() if k in (*PACKAGES, "memcalc")}
    return {name: known.split("+")[0] for name, known in sorted(versions.items())}
