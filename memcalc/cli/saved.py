"""Result files that are named on the command line."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from memcalc.errors import UsageError
from memcalc.estimation.kept import Traced
from memcalc.estimation.question import code_in
from memcalc.files import artifact
from memcalc.files.results import predictions, with_traces
from memcalc.records.plan import Plan
from memcalc.records.prediction import Prediction


def saved(model: object) -> dict[str, Any] | None:
    """The result in the file that was named in place of a model; ``None``: it is a model."""
    path = Path(str(model))
    if path.suffix == ".pickle" and os.path.isfile(path):
        raise UsageError(f"{model} is a memory snapshot: type memcalc show {model}.")
    if model is None or path.suffix != ".json" or not os.path.isfile(path):
        return None
    try:
        return artifact.read(path)
    except UsageError:
        # A model's config.json is no result.
        return None


def only_prediction(data: dict[str, Any], path: Path) -> Prediction:
    """The one answer of a result file that is compared with another.

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
    """The plans of the answers in a result file, which are answered again; a command never is.

    Raises:
        UsageError: it is damaged, or names code, which is not run for a file.
    """
    plans = [found.plan for found in predictions(data, path)]
    code = next((code_in(plan) for plan in plans if not plan.command and code_in(plan)), None)
    if code is not None:
        raise UsageError(f"{path} names {code}, which is code: type memcalc {verb} {code} itself.")
    return plans


def traced_in(data: dict[str, Any] | None, path: Path) -> list[Traced]:
    """The runs of commands in a result file, with what their allocators did.

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
    """See that nothing is set beside a saved answer, whose settings are its own.

    Raises:
        UsageError: something is.
    """
    beside = next((name for name, value in settings.items() if name != "model" and value), None)
    if beside is not None:
        raise UsageError(
            f"{settings.get('model')} is a saved answer with settings of its own: leave "
            f"{beside} out, or name its model."
        )
