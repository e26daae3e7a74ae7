"""What the storages of a quantised model are for: packed weights, and what turns them back."""

from __future__ import annotations

import torch

from memcalc.records.trace import Component
from memcalc.trace.ledger import Ledger
from memcalc.workload.quantised import constants, constants_in, original, packed


def label(model: torch.nn.Module, ledger: Ledger) -> None:
    """Label quantised weights and their constants; what is as it was is left to others."""
    for parameter in model.parameters():
        if original(parameter) is not None:
            ledger.label(constants(parameter).values(), Component.QUANTISATION_CONSTANTS)
            ledger.label((packed(parameter),), Component.QUANTISED_WEIGHTS)


def label_shards(model: torch.nn.Module, ledger: Ledger) -> None:
    """The same where a wrapper divided weights in 4 bit: each layer still knows its constants."""
    for module in model.modules():
        state = getattr(module, "quant_state", None)
        weight = getattr(module, "weight", None)
        if state is not None and isinstance(weight, torch.Tensor):
            ledger.label(constants_in(state).values(), Component.QUANTISATION_CONSTANTS)
            ledger.label((weight,), Component.QUANTISED_WEIGHTS)
