"""Which class of transformers each model type builds for each task (configs/architectures.json)."""

from __future__ import annotations

import functools
import json
from typing import Any

from memcalc.files.shipped import configs


@functools.cache
def table() -> dict[str, Any]:
    """``{model_type: {"config": class name, "heads": {task: class name}}}``."""
    data = json.loads((configs() / "architectures.json").read_text(encoding="utf-8"))
    types: dict[str, Any] = data["types"]
    return types


def heads(model_type: str) -> dict[str, str]:
    """The heads of a model type, by task; empty for an unknown type."""
    found: dict[str, str] = table().get(model_type, {}).get("heads", {})
    return found
