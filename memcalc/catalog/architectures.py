"""Which class of transformers each model type builds for each task (configs/architectures.json)."""

from __future__ import annotations

import functools
from typing import Any

from memcalc.files import shipped
from memcalc.files.artifact import decode


@functools.cache
def table() -> dict[str, Any]:
    """``{model_type: {"config": class name, "heads": {task: class name}}}``."""
    return shipped.read("architectures.json", lambda data: decode(dict[str, Any], data["types"]))


def heads(model_type: str) -> dict[str, str]:
    """The heads of a model type, by task; empty for an unknown type."""
    found: dict[str, str] = table().get(model_type, {}).get("heads", {})
    return found
