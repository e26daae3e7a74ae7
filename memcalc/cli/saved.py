"""Result files that are named on the command line."""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from memcalc.errors import UsageError
from memcalc.estimation.kept import Traced
from memcalc.estimation.question import find_user_code
from memcalc.files import artifact, cache
from memcalc.files.results import predictions, with_traces
from memcalc.records.plan import Plan
from memcalc.records.prediction import Prediction

LAST = "last"
"""Names the last simulated run in place of a file."""


def keep_last(found: Traced) -> Path | None:
    """Save a run for ``memcalc explain last``; return the file, or None if it cannot be written.

    Its trace is in the cache.
    """
    from memcalc.report.predictions import as_json

    try:
        file = _last_path()
        file.parent.mkdir(parents=True, exist_ok=True)
        artifact.write(file, as_json([found.prediction]))
    except (OSError, UsageError):
        return None
    return file


def _last_path() -> Path:
    """Return the file of this folder's last run: another checkout has a last run of its own."""
    here = hashlib.sha256(os.fsencode(os.getcwd())).hexdigest()
    return cache.folder() / f"{here[:32]}.json"


def read_result(model: object) -> dict[str, Any] | None:
    """Return a result file's JSON if one is named in place of a model, else None."""
    path = locate(model)
    if path.suffix == ".pickle" and os.path.isfile(path):
        raise UsageError(f"{model} is a memory snapshot: type memcalc show {model}.")
    if path == _last_path() and not path.exists():
        raise UsageError(
            "No run of this folder is kept as the last: type memcalc simulate -- python train.py."
        )
    if model is None or path.suffix != ".json" or not os.path.isfile(path):
        return None
    try:
        return artifact.read(path)
    except UsageError:
        # A model's config.json is no result.
        return None


def locate(model: object) -> Path:
    """Return the path named in place of a model; ``last`` is the last simulated run's file."""
    path = Path(str(model))
    return _last_path() if str(model) == LAST and not os.path.exists(path) else path


def only_prediction(data: dict[str, Any], path: Path) -> Prediction:
    """Return the only prediction of a result file; raise UsageError for several.

    Raises:
        UsageError: it is damaged, or holds several.
    """
    if data.get("kind") == "explanation":
        from memcalc.report.saved import read

        return cast(Prediction, read(data, path).prediction)
    found = predictions(data, path)
    if len(found) != 1:
        raise UsageError(f"{path} holds {len(found)} answers: compare files of one each.")
    return found[0]


def plans_in(data: dict[str, Any], path: Path, verb: str) -> list[Plan]:
    """Return the plans of a result file, to answer again; refuse a file that names code.

    Plans of commands are returned too; their kept traces answer, and they never run again.

    Raises:
        UsageError: it is damaged, or names the user's code.
    """
    plans = [found.plan for found in predictions(data, path)]
    code = next(
        (find_user_code(plan) for plan in plans if not plan.command and find_user_code(plan)), None
    )
    if code is not None:
        raise UsageError(f"{path} names {code}, which is code: type memcalc {verb} {code} itself.")
    return plans


def traced_in(data: dict[str, Any] | None, path: Path) -> list[Traced]:
    """Return the traced commands of a result file; empty for another kind of file.

    Raises:
        UsageError: it is damaged, or the two do not belong together.
    """
    if data is None or data.get("kind", "prediction") != "prediction":
        return []
    from memcalc.records.trace import highest

    found = [Traced(prediction=p, trace=trace) for p, trace in with_traces(data, path)]
    for one in found:
        if one.prediction.peak.phase not in highest(one.trace):
            raise UsageError(f"{path} holds no trace that can be read: it is of another run.")
    return found


def check_alone(settings: Mapping[str, Any]) -> None:
    """Raise UsageError if settings are given beside a saved answer.

    Raises:
        UsageError: something is.
    """
    beside = next((name for name, value in settings.items() if name != "model" and value), None)
    if beside is not None:
        raise UsageError(
            f"{settings.get('model')} is a saved answer with settings of its own: leave "
            f"{beside} out, or name its model."
        )
