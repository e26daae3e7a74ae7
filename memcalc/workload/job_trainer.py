"""A Trainer that trains a job: with its optimizer, and on batches that are on the device already.

Read in transformers 5.23 and accelerate 1.15.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback
from transformers.trainer_pt_utils import EvalLoopContainer

from memcalc.workload import library_settings
from memcalc.workload.job import Job, allocate_like

_PREPARES = hasattr(Trainer, "_prepare_for_training")
"""False for transformers before 5.0, whose ``_inner_training_loop`` wraps the model in place, from
its request for batches until it loads the optimizer's state."""


class _Loader:
    """A prepared data loader: its batches are on the device."""

    def __init__(self, make: Callable[[int], Any], length: int) -> None:
        self._make = make
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Any]:
        return map(self._make, range(self._length))


class JobTrainer(Trainer):  # type: ignore[misc]
    """transformers' Trainer over a job's model, optimizer and batches."""

    def __init__(self, job: Job, arguments: TrainingArguments) -> None:
        self._job = job
        self._number = 0
        self._batch: Any = None
        self._predicted: Any = None
        self._preparation = contextlib.ExitStack()
        super().__init__(
            model=job.model,
            args=arguments,
            # Under FSDP and DeepSpeed the Trainer makes it itself.
            optimizers=(None if library_settings.sharding(job) else job.optimizer, None),
            compute_metrics=lambda prediction: {},
            callbacks=[_EvaluateAtEnd(job)],
        )
        self.remove_callback(PrinterCallback)

    def create_optimizer(self, model: Any = None) -> Any:
        """Return the job's optimizer in place of a new one."""
        self.optimizer = self._job.optimizer
        return self.optimizer

    def get_train_dataloader(self) -> Any:
        """Return the job's batches as a data loader."""
        if not _PREPARES:
            self._preparation.enter_context(self._resume_when_prepared())
        count = self.args.max_steps * self._job.plan.grad_accum
        return _Loader(lambda _: self._job.batch(), count)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """Return the job's evaluation batches as a data loader."""
        return _Loader(self._make_eval_batch, self._job.eval_batches)

    @contextlib.contextmanager
    def _resume_when_prepared(self) -> Iterator[None]:
        check = self._job.check_wrapped()
        yield
        check(self.model_wrapped)
        self._job.resume()

    def _prepare_for_training(self, *args: Any) -> Any:
        with self._resume_when_prepared():
            return super()._prepare_for_training(*args)

    def _load_optimizer_and_scheduler(self, *args: Any) -> None:
        super()._load_optimizer_and_scheduler(*args)
        self._preparation.close()

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluate, then drop the last batch and outputs."""
        metrics = super().evaluate(*args, **kwargs)
        self._batch = self._predicted = None
        return metrics

    def _make_eval_batch(self, number: int) -> Any:
        """Make an evaluation batch; return the previous one if it is not to run."""
        self._number = number
        if not self._job.simulated:
            return self._job.batch()
        if self._job.evaluates(number):
            self._batch = self._job.batch()
        return self._batch

    def prediction_step(self, *args: Any, **kwargs: Any) -> Any:
        """Run an evaluation batch, or return empty tensors like the previous results."""
        if not self._job.simulated:
            return super().prediction_step(*args, **kwargs)
        if self._job.evaluates(self._number):
            loss, *rest = super().prediction_step(*args, **kwargs)
            # The loss itself is dropped as soon as it is repeated for each sample.
            again = loss is not None and functools.partial(
                torch.empty, loss.shape, dtype=loss.dtype, device=loss.device
            )
            self._predicted = again, *rest
            return loss, *rest
        again, logits, labels = self._predicted
        self._predicted = again, allocate_like(logits), labels
        return again() if again else None, *self._predicted[1:]


class _EvaluateAtEnd(TrainerCallback):  # type: ignore[misc]
    def __init__(self, job: Job) -> None:
        self._evaluates = bool(job.eval_batches)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_evaluate = state.global_step == args.max_steps and self._evaluates


@contextlib.contextmanager
def without_arrays(job: Job) -> Iterator[None]:
    """Keep a simulated evaluation from copying results to host arrays, inside the block."""
    original = EvalLoopContainer.get_arrays
    if job.simulated:
        EvalLoopContainer.get_arrays = lambda container: None
    try:
        yield
    finally:
        EvalLoopContainer.get_arrays = original
