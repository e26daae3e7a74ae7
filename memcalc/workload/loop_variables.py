"""The variables of a training script, which hold what they hold until the next is made."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch

from memcalc.workload.job import Job
from memcalc.workload.outputs import logits_of, loss_of, remembered


class Script:
    """A loop in one function with the names ``batch``, ``outputs`` and ``loss``.

    Evaluation follows under the same names, as in transformers' ``run_glue_no_trainer.py``: the
    last training batch and outputs live until evaluation has made its first, the last loss to the
    end.

    Args:
        job: what is trained.
        model: its model, perhaps wrapped.
        context: what forward runs under.
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
