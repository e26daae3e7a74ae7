"""Low-rank adapters through peft: the base is frozen, the adapters train."""

from __future__ import annotations

from typing import Any

import torch

from memcalc.errors import UsageError

_KEYS = ("r", "target", "alpha", "dropout")


def parse(spec: str) -> dict[str, str]:
    """Read ``r=16,target=all-linear``; targets of more than one name are joined by ``+``.

    Raises:
        UsageError: a part has another form or an unknown key.
    """
    parts: dict[str, str] = {}
    for part in spec.split(","):
        key, equals, value = part.strip().partition("=")
        if not equals or key not in _KEYS or not value:
            raise UsageError(
                f"--lora {spec!r} is not understood at {part!r}: write r=16,target=all-linear "
                f"(keys: {', '.join(_KEYS)})."
            )
        parts[key] = value
    if not parts.get("r", "16").isdigit() or int(parts.get("r", "16")) < 1:
        raise UsageError(f"--lora {spec!r}: the rank r is a whole number of at least 1.")
    return parts


def attach(model: torch.nn.Module, spec: str) -> torch.nn.Module:
    """Wrap a model with adapters.

    Raises:
        UsageError: peft is not installed, or it cannot adapt this model.
    """
    parts = parse(spec)
    try:
        import peft
    except ImportError:
        raise UsageError("LoRA needs peft: type pip install 'memcalc[lora]'.") from None
    target: Any = parts.get("target", "all-linear")
    config = peft.LoraConfig(
        r=int(parts.get("r", "16")),
        lora_alpha=float(parts.get("alpha", 2 * int(parts.get("r", "16")))),
        lora_dropout=float(parts.get("dropout", "0")),
        target_modules=target if target == "all-linear" else target.split("+"),
    )
    try:
        # Adapter weights are made on the device of the layer they adapt, here meta.
        wrapped: torch.nn.Module = peft.get_peft_model(model, config)
    except ValueError as error:
        raise UsageError(f"peft cannot adapt {type(model).__name__}: {error}.") from None
    return wrapped
