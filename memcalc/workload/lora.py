"""Low-rank adapters through peft: the base is frozen, the adapters train."""

from __future__ import annotations

import torch

from memcalc.errors import UsageError
from memcalc.records.texts import adapter


def attach(model: torch.nn.Module, text: str) -> torch.nn.Module:
    """Wrap a model with the adapters that a text of ``Plan.lora`` asks for.

    Raises:
        UsageError: peft cannot adapt this model.
    """
    import peft

    wanted = adapter(text)
    config = peft.LoraConfig(
        r=wanted.r,
        lora_alpha=wanted.alpha,
        lora_dropout=wanted.dropout,
        target_modules=wanted.target if isinstance(wanted.target, str) else list(wanted.target),
    )
    try:
        # Adapter weights are made on the device of the layer they adapt, here meta.
        wrapped: torch.nn.Module = peft.get_peft_model(model, config)
    except ValueError as error:
        raise UsageError(f"peft cannot adapt {type(model).__name__}: {error}.") from None
    return wrapped
