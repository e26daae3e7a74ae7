"""Low-rank adapters through peft: the base is frozen, the adapters train."""

from __future__ import annotations

import contextlib

import torch

from memcalc.errors import UsageError
from memcalc.records.compact_options import adapter


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
    on_meta = all(parameter.is_meta for parameter in model.parameters())
    try:
        # peft makes adapters on the CPU and moves them beside the layer they adapt; where that is
        # meta they are not filled first, which takes seconds for a model of 7B.
        with torch.device("meta") if on_meta else contextlib.nullcontext():
            wrapped: torch.nn.Module = peft.get_peft_model(model, config)
    except ValueError as error:
        raise UsageError(f"peft cannot adapt {type(model).__name__}: {error}.") from None
    return wrapped
