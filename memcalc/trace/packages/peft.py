"""peft: what it does to a quantised model before it trains, in which layer, and to the cache.

Read in 0.21: ``utils/other.py``, ``prepare_model_for_kbit_training``, and ``tuners/lora/model.py``.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from memcalc.trace.ledger import Ledger
from memcalc.trace.torch_private.names import replaced


@contextmanager
def prepared(ledger: Ledger) -> Iterator[None]:
    """Follow it through the layers; it finds a GPU whose cache it can give back."""
    model = importlib.import_module("peft.tuners.lora.model").LoraModel
    create = model._create_and_replace

    def attach(*args: Any, current_key: str, **kwargs: Any) -> Any:
        ledger.leave_repetition()
        ledger.at(current_key)
        ledger.by_parameter = False
        try:
            return create(*args, current_key=current_key, **kwargs)
        finally:
            ledger.go_by_parameter()

    with (
        replaced(torch.cuda, "is_available", lambda: True),
        replaced(torch.cuda, "empty_cache", ledger.empty_cache),
        replaced(model, "_create_and_replace", attach),
    ):
        yield
