"""The estimating child: opens the stub driver before importing PyTorch, then answers.

``{"plan": ...}`` is answered by ``{"prediction": ...}``, with ``"keep": true`` also by its
``"trace"``, packed; with ``"devices": [...]`` by ``{"judged": ...}``, and ``"inventory": true`` by
``{"inventory": ...}``, for which nothing is run.
"""

from __future__ import annotations

import gc
import importlib
from typing import TYPE_CHECKING, Any

from memcalc.engine import driver

if TYPE_CHECKING:
    from memcalc.children.child import Speaker

_BETWEEN_COLLECTIONS = 100_000
"""Objects that are made before Python looks for garbage: reading a history makes as many, and
looking through them again and again takes a tenth of the time."""


def warm(*hint: str) -> None:
    """Import what runs of an architecture have in common."""
    driver.open_here()
    importlib.import_module("memcalc.estimation.worker").warm(*hint)


def answer(request: dict[str, Any], speaker: Speaker) -> dict[str, Any]:
    """Answer a request."""
    driver.open_here()
    gc.set_threshold(_BETWEEN_COLLECTIONS)
    said: dict[str, Any] = importlib.import_module("memcalc.estimation.worker").answer(
        request, speaker
    )
    return said
