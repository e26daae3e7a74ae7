"""Evaluation as people run it: the logits of every batch stay on the device until the end."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import msgspec
import torch

Batch = dict[str, torch.Tensor]


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """What an evaluation needs."""

    model: torch.nn.Module
    batch: Callable[[], Batch]
    forward: Callable[[Batch], Any]
    """Runs the model as training does: under autocast, outputs upcast where that is done."""
    batches: int
    whole: bool
    """Run every batch through the model; False on the simulated device, where those in the middle
    are like their neighbours and only leave their logits behind."""


@contextlib.contextmanager
def _evaluating(model: torch.nn.Module) -> Any:
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train()


def plain(job: Evaluation) -> None:
    """A list that every batch's logits are appended to."""
    kept: list[torch.Tensor] = []
    with _evaluating(job.model):
        for number in range(job.batches):
            if _runs(job, number):
                batch = job.batch()
                outputs = job.forward(batch)
                kept.append(_logits(outputs))
            else:
                kept.append(torch.empty_like(kept[-1]))


def trainer(job: Evaluation) -> None:
    """As ``Trainer.evaluation_loop`` with metrics to compute and no ``eval_accumulation_steps``.

    Logits, labels and losses are concatenated batch by batch, so that old and new stand side by
    side. Source: transformers 5.23, ``trainer.py`` and ``trainer_pt_utils.EvalLoopContainer``.
    """
    config = getattr(job.model, "config", None)
    ignored = {"loss", *getattr(config, "keys_to_ignore_at_inference", ["past_key_values"])}
    kept: dict[str, Any] = {}
    with _evaluating(job.model):
        for number in range(job.batches):
            if _runs(job, number):
                batch = job.batch()
                loss, logits = _prediction_step(job, batch, ignored)
                labels = batch.get("labels")
            elif loss is not None:
                loss = torch.empty_like(loss)
            if loss is not None:
                _add(kept, "losses", loss.repeat(next(iter(batch.values())).shape[0]))
            _add(kept, "logits", logits if _runs(job, number) else _alike(logits))
            if labels is not None:
                _add(kept, "labels", labels)


def _runs(job: Evaluation, number: int) -> bool:
    return job.whole or number < 2 or number == job.batches - 1


def _prediction_step(
    job: Evaluation, batch: Batch, ignored: set[str]
) -> tuple[torch.Tensor | None, Any]:
    outputs = job.forward(batch)
    if not hasattr(outputs, "items"):
        return None, outputs
    loss = outputs.get("loss")
    logits = tuple(value for name, value in outputs.items() if name not in ignored)
    return (
        loss.detach().mean() if loss is not None else None,
        logits[0] if len(logits) == 1 else logits,
    )


def _add(kept: dict[str, Any], name: str, new: Any) -> None:
    kept[name] = _concatenated(kept[name], new) if name in kept else new


def _concatenated(old: Any, new: Any) -> Any:
    if isinstance(new, torch.Tensor):
        return torch.cat((torch.atleast_1d(old), torch.atleast_1d(new)), dim=0)
    if isinstance(new, dict):
        return {name: _concatenated(old[name], value) for name, value in new.items()}
    if isinstance(new, list | tuple):
        return type(new)(_concatenated(a, b) for a, b in zip(old, new, strict=True))
    return new


def _alike(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.empty_like(value)
    if isinstance(value, dict):
        return {name: _alike(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_alike(item) for item in value)
    return value


def _logits(outputs: Any) -> torch.Tensor:
    """What is kept to compare with the labels: ``logits``, or the first output but the loss."""
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
