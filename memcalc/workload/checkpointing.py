"""Turns gradient checkpointing on, or says why a model has none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from memcalc.errors import UsageError
from memcalc.records.plan import Plan


def switch(model: torch.nn.Module) -> Callable[[], None]:
    """What turns checkpointing on.

    Raises:
        UsageError: nothing does.
    """
    enable: Any = getattr(model, "gradient_checkpointing_enable", None)
    if enable is None or not getattr(model, "supports_gradient_checkpointing", True):
        raise UsageError(
            f"{type(model).__name__} does not support gradient checkpointing: "
            "leave --checkpointing out."
        )
    return enable  # type: ignore[no-any-return]


def checkpoint(model: torch.nn.Module, plan: Plan) -> None:
    """Recompute every layer, or every n-th, as the plan says.

    Raises:
        UsageError: the model has no checkpointing, or its transformers none of every n-th layer.
    """
    enable: Any = switch(model)
    every = plan.checkpoint_every
    if every == 1:
        enable()
        if plan.lora is not None and _is_reentrant(model):
            # Without it nothing that goes into a layer needs gradients, and backward is refused.
            model.enable_input_require_grads()  # type: ignore[operator]
        return
    sparse = getattr(model, "activation_checkpointing_enable", None)
    if sparse is None:
        raise UsageError(
            "This transformers recomputes all layers or none: install 5.23, or leave "
            "--checkpoint-every out."
        )
    sparse(every_n_layers=every)


def _is_reentrant(model: torch.nn.Module) -> bool:
    """Whether checkpointing that was turned on is PyTorch's older one, as in transformers 4."""
    found = (getattr(part, "_gradient_checkpointing_func", None) for part in model.modules())
    return any(one.keywords.get("use_reentrant") for one in found if one is not None)
