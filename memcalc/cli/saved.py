"""Result files that are named on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from memcalc.errors import UsageError
from memcalc.explanation.records import Explanation
from memcalc.files import artifact
from memcalc.records.prediction import Prediction


def saved(model: object) -> dict[str, Any] | None:
    """The result in the file that was named in place of a model; ``None``: it is a model."""
    path = Path(str(model))
    if model is None or path.suffix != ".json" or not path.is_file():
        return None
    try:
        return artifact.read(path)
    except UsageError:
        # A model's config.json is no result.
        return None


def explanation_in(data: dict[str, Any], path: Path) -> Explanation:
    """The explanation of a result file.

    Raises:
        UsageError: it is damaged.
    """
    try:
        found: Explanation = artifact.decode(Explanation, data["record"])
    except (KeyError, TypeError, ValueError, AttributeError):
        raise UsageError(f"{path} holds no explanation that can be read.") from None
    return found


def predictions_in(data: dict[str, Any], file: Path) -> list[Prediction]:
    """The predictions of a result file.

    Raises:
        UsageError: there are none, or they are damaged.
    """
    bodies = data.get("predictions", [data])
    try:
        return [artifact.decode(Prediction, body["record"]) for body in bodies]
    except (KeyError, TypeError, ValueError, AttributeError):
        raise UsageError(f"{file} holds no prediction that can be read.") from None
