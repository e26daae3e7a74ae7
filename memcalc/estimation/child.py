"""The estimating child: opens the stub driver before importing PyTorch, then answers.

The answer to ``{"plan": ...}`` is ``{"prediction": ..., "others": [...]}``, with ``"keep": true``
also its packed ``"trace"``; with ``"inventory": true``, for which nothing is run, it is
``{"inventory": ...}``.
"""

from __future__ import annotations

import gc
import importlib
from typing import TYPE_CHECKING, Any

from memcalc.engine import driver

if TYPE_CHECKING:
    from memcalc.children.child import Speaker

_BETWEEN_COLLECTIONS = 100_000
"""New objects before Python collects garbage. Reading a history makes as many, and at Python's
default the collector would take a tenth of the time."""


def warm(*hint: str) -> None:
    """Open the stub driver and import the modules that runs of an architecture need."""
    driver.open_stub()
    importlib.import_module("memcalc.estimation.worker").warm(*hint)


def answer(request: dict[str, Any], speaker: Speaker) -> dict[str, Any]:
    """Open the stub driver and answer a request; the entry point of a child process."""
    driver.open_stub()
    gc.set_threshold(_BETWEEN_COLLECTIONS)
    worker = importlib.import_module("memcalc.estimation.worker")
    found: dict[str, Any] = worker.answer(request, speaker)
    return found
