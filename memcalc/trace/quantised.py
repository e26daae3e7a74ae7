"""What the storages of a quantised model are for: packed weights, and what turns them back."""

from __future__ import annotations

import torch

from memcalc.records.trace import Component
from memcalc.trace.ledger import Ledger
from memcalc.workload.quantised import constants, original, packed


def label(model: torch.nn.Module, ledger: Ledger) -> None:
    """Label quantised weights and their constants; what is as it was is left to others."""
    for parameter in model.parameters():
        if original(parameter) is not None:
            ledger.label(constants(parameter).values(), Component.QUANTISATION_CONSTANTS)
            ledger.label((packed(parameter),), Component.QUANTISED_WEIGHTS)
