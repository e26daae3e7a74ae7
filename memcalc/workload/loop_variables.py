"""The variables of a training script, which hold what they hold until the next is made."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from memcalc.workload.job import Job


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
    first = _first_of(outputs, "", "train on")
    return first if first.dim() == 0 else first.float().mean()


def logits_of(outputs: Any) -> torch.Tensor:
    """What is kept to compare with the labels: ``logits``, or the first output but the loss.

    Raises:
        TypeError: the model returned no floating-point tensor.
    """
    logits = getattr(outputs, "logits", None)
    return logits if isinstance(logits, torch.Tensor) else _first_of(outputs, "loss", "keep")


def _first_of(outputs: Any, but: str, use: str) -> torch.Tensor:
    if isinstance(outputs, torch.Tensor):
        return outputs
    for name, value in outputs.items() if hasattr(outputs, "items") else enumerate(outputs):
        if name != but and isinstance(value, torch.Tensor) and value.is_floating_point():
            return value
    raise TypeError(f"the model returned no floating-point tensor to {use}")


def remembered(value: Any) -> Any:
    """Memory like what a batch that does not run would leave behind."""
    return tree_map_only(torch.Tensor, torch.empty_like, value)


class Script:
    """A loop in one function with the names ``batch``, ``outputs`` and ``loss``.

    Evaluation follows under the same names, as in transformers' ``run_glue_no_trainer.py``: the
    last training batch and outputs live until evaluation has made its first, the last loss to the
    end.
    """

    batch: Any = None
    outputs: Any = None
    loss: Any = None

    def __init__(
        self,
        job: Job,
        model: Any,
        context: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
    ) -> None:
        self._job = job
        self._model = model
        self._context = context

    def forward(self) -> None:
        """``outputs = model(**batch)`` and ``loss = outputs.loss``.

        Where no outputs are kept, both in one line.
        """
        self.batch = self._job.batch()
        with self._context():
            self.outputs = self._model(**self.batch)
            self.loss = loss_of(self.outputs)
        if not self._job.keep_outputs:
            self.outputs = None

    def evaluate(self) -> None:
        """A list that every batch's logits are appended to."""
        kept: list[torch.Tensor] = []
        self._model.eval()
        with torch.no_grad():
            for number in range(self._job.eval_batches):
                if not self._job.evaluates(number):
                    kept.append(remembered(kept[-1]))
                    continue
                self.batch = self._job.batch()
                with self._context():
                    self.outputs = self._model(**self.batch)
                kept.append(logits_of(self.outputs))
                if not self._job.keep_outputs:
                    self.outputs = None
        self._model.train()
