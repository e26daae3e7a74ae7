"""The estimating child: opens the stub driver before importing PyTorch, then answers.

``{"plan": ...}`` is answered by ``{"prediction": ...}``, with ``"keep": true`` also by its
``"trace"``, packed; with ``"devices": [...]`` by ``{"judged": ...}``, and ``"inventory": true`` by
``{"inventory": ...}``, for which nothing is run.
"""

from __future__ import annotations

import gc
import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from memcalc.engine import driver

if TYPE_CHECKING:
    from memcalc.children.child import Breadcrumbs, Speaker

_BETWEEN_COLLECTIONS = 100_000
"""Objects that are made before Python looks for garbage: reading a history makes as many, and
looking through them again and again takes a tenth of the time."""


def warm(architecture: str) -> None:
    """Import what runs of an architecture have in common; of a callable, nothing is known."""
    driver.open_here()
    importlib.import_module("memcalc.estimation.worker").warm(architecture)


def answer_for(breadcrumbs: Breadcrumbs) -> Callable[[dict[str, Any], Speaker], dict[str, Any]]:
    """A function that answers requests."""
    driver.open_here()
    gc.set_threshold(_BETWEEN_COLLECTIONS)
    worker = importlib.import_module("memcalc.estimation.worker").Worker(breadcrumbs)
    return lambda request, speaker: worker.answer(request)
