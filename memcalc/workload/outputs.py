"""Loss and logits in a model's outputs."""

from __future__ import annotations

from typing import Any

import torch


def loss_of(outputs: Any) -> torch.Tensor:
    """Find the loss in what a model returns, or make one from its first tensor.

    A model that returns no ``loss`` and no scalar is trained on the mean of its first
    floating-point output.

    Raises:
        TypeError: the model returned no floating-point tensor.
    """
    loss = outputs.get("loss") if isinstance(outputs, dict) else getattr(outputs, "loss", None)
    if isinstance(loss, torch.Tensor):
        return loss
    first = _first_tensor(outputs)
    return first if first.dim() == 0 else first.float().mean()


def _first_tensor(outputs: Any) -> torch.Tensor:
    if isinstance(outputs, torch.Tensor):
        return outputs
    items = outputs.values() if isinstance(outputs, dict) else outputs
    for item in items:
        if isinstance(item, torch.Tensor) and item.is_floating_point():
            return item
    raise TypeError("the model returned no floating-point tensor to train on")


def logits_of(outputs: Any) -> torch.Tensor:
    """What is kept to compare with the labels: ``logits``, or the first output but the loss.

    Raises:
        TypeError: the model returned no floating-point tensor.
    """
    logits = getattr(outputs, "logits", None)
    if isinstance(logits, torch.Tensor):
        return logits
    if isinstance(outputs, torch.Tensor):
        return outputs
    items = outputs.items() if hasattr(outputs, "items") else enumerate(outputs)
    for name, value in items:
        if name != "loss" and isinstance(value, torch.Tensor) and value.is_floating_point():
            return value
    raise TypeError("the model returned no floating-point tensor to keep")


def remembered(value: Any) -> Any:
    """Memory like what a batch that does not run would leave behind."""
    if isinstance(value, torch.Tensor):
        return torch.empty_like(value)
    if isinstance(value, dict):
        return {name: remembered(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(remembered(item) for item in value)
    return value
