"""The training loops people run; the same code trains for real and on the simulated GPU.

What a loop keeps alive, and until when, decides peaks: the plain loop holds the last outputs
(logits included) until the next forward has made new ones, as a script with
``outputs = model(**batch)`` does; the Trainer's drops them as soon as it has the loss.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Protocol

import msgspec
import torch

from memcalc.records.trace import Phase
from memcalc.workload import evaluate

Batch = dict[str, torch.Tensor]


class Watch(Protocol):
    """Somebody who wants to know which phase of which step runs."""

    def phase(self, phase: Phase, step: int) -> contextlib.AbstractContextManager[None]:
        """Enter a phase; ``step`` counts from 0."""
        ...


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a loop needs; model and optimizer are already on the device."""

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    batch: Callable[[], Batch]
    """Makes one micro-batch on the device."""
    autocast: Callable[[], contextlib.AbstractContextManager[Any]]
    scaler: Any = None
    """``torch.amp.GradScaler`` or ``None``."""
    grad_accum: int = 1
    max_grad_norm: float | None = None
    set_to_none: bool = True
    upcast_outputs: bool = False
    """Return fp32 copies of half-precision outputs, as accelerate does under autocast."""
    restore: Callable[[], None] | None = None
    """Loads the optimizer's state of a checkpoint; ``None``: the run starts afresh."""
    eval_batches: int = 0
    whole_eval: bool = True


def run(job: Job, watch: Watch, *, loop: str, steps: int) -> None:
    """Train for some optimizer steps.

    Args:
        job: what to train.
        watch: told of every phase.
        loop: ``plain`` or ``trainer``.
        steps: number of optimizer steps.
    """
    if job.restore is not None:
        with watch.phase(Phase.RESUME, 0):
            job.restore()
    {"plain": _plain, "trainer": _trainer}[loop](job, watch, steps)


def loss_of(outputs: Any) -> torch.Tensor:
    """Find the loss in what a model returns, or make one from its first tensor.

    A model that returns no ``loss`` and no scalar is trained on the mean of its first
    floating-point output.
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


def _plain(job: Job, watch: Watch, steps: int) -> None:
    for step in range(steps):
        for _ in range(job.grad_accum):
            with watch.phase(Phase.FORWARD, step):
                batch = job.batch()
                with job.autocast():
                    outputs = job.model(**batch)
                    loss = loss_of(outputs)
                if job.grad_accum > 1:
                    loss = loss / job.grad_accum
            with watch.phase(Phase.BACKWARD, step):
                _backward(job, loss)
        _update(job, watch, step)
    _evaluate(job, watch, steps - 1, evaluate.plain)
    del batch, outputs, loss


def _trainer(job: Job, watch: Watch, steps: int) -> None:
    for step in range(steps):
        for _ in range(job.grad_accum):
            loss = _training_step(job, watch, step)
        _update(job, watch, step)
    _evaluate(job, watch, steps - 1, evaluate.trainer)
    del loss


def _training_step(job: Job, watch: Watch, step: int) -> torch.Tensor:
    """One micro-batch as ``Trainer.training_step`` runs it (transformers 5.23)."""
    with watch.phase(Phase.FORWARD, step):
        batch = job.batch()
        outputs = _forward(job, batch)
        loss = loss_of(outputs)
        del batch, outputs
        if job.grad_accum > 1:
            loss = loss / job.grad_accum
    with watch.phase(Phase.BACKWARD, step):
        _backward(job, loss)
    return loss.detach()


def _forward(job: Job, batch: Batch) -> Any:
    with job.autocast():
        outputs = job.model(**batch)
    if job.upcast_outputs:
        outputs = {name: _upcast(value) for name, value in outputs.items()}
    return outputs


def _evaluate(
    job: Job, watch: Watch, step: int, how: Callable[[evaluate.Evaluation], None]
) -> None:
    if not job.eval_batches:
        return
    with watch.phase(Phase.EVAL, step):
        how(
            evaluate.Evaluation(
                model=job.model,
                batch=job.batch,
                forward=lambda batch: _forward(job, batch),
                batches=job.eval_batches,
                whole=job.whole_eval,
            )
        )


def _upcast(value: Any) -> Any:
    """Source: accelerate 1.15, ``utils/operations.py::convert_to_fp32``."""
    if isinstance(value, torch.Tensor) and value.dtype in (torch.float16, torch.bfloat16):
        return value.float()
    if isinstance(value, list | tuple):
        return type(value)(_upcast(item) for item in value)
    return value


def _backward(job: Job, loss: torch.Tensor) -> None:
    (job.scaler.scale(loss) if job.scaler is not None else loss).backward()


def _update(job: Job, watch: Watch, step: int) -> None:
    with watch.phase(Phase.STEP, step):
        if job.max_grad_norm is not None:
            if job.scaler is not None:
                job.scaler.unscale_(job.optimizer)
            torch.nn.utils.clip_grad_norm_(job.model.parameters(), job.max_grad_norm)
        if job.scaler is not None:
            job.scaler.step(job.optimizer)
            job.scaler.update()
        else:
            job.optimizer.step()
    with watch.phase(Phase.ZERO_GRAD, step):
        job.optimizer.zero_grad(set_to_none=job.set_to_none)
