"""A plan made ready to run: model, optimizer, batches and loop, for a real or simulated device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import torch
from msgspec.structs import replace

from memcalc.catalog import models
from memcalc.errors import UsageError
from memcalc.records.model import Inventory
from memcalc.records.plan import Plan
from memcalc.registry import Choice
from memcalc.workload import lora, tasks
from memcalc.workload.chunked import chunk_loss
from memcalc.workload.inputs import Batch, Inputs, described
from memcalc.workload.inventory import take
from memcalc.workload.model import build
from memcalc.workload.precision import PRECISIONS, Precision
from memcalc.workload.tasks import Task

TRAINER_MAX_GRAD_NORM = 1.0
"""Default of ``TrainingArguments.max_grad_norm`` (transformers 5.23)."""


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """What to run; the model is not on the device yet."""

    plan: Plan
    model: torch.nn.Module
    inventory: Inventory
    choice: Choice
    batch: Callable[[Any], Batch]
    """Makes one micro-batch on the device it is given."""
    seq: int | None
    """Tokens per sample that were settled on; ``None`` for inputs without tokens."""
    precision: Precision
    max_grad_norm: float | None
    assumptions: tuple[str, ...]
    inputs: Inputs | None = None
    """What makes the batches; ``None`` where the user described them."""

    def resized(self, batch: Any, seq: Any) -> Program:
        """The same program on batches of another size; whole numbers or symbols.

        Raises:
            UsageError: the model does not take such sequences, or its inputs are described.
        """
        if self.inputs is None:
            raise UsageError(
                "Batch and sequence of a model with --input are in its description: "
                "name a model that memcalc makes batches for."
            )
        inputs = self.inputs.resized(batch, seq)
        return replace(
            self,
            plan=replace(self.plan, batch=batch, seq=seq),
            batch=inputs.make,
            seq=inputs.seq if inputs.has_tokens else None,
            inputs=inputs,
        )

    @property
    def in_backward(self) -> bool:
        """Each parameter is updated inside backward."""
        return self.plan.optim_in_backward or self.choice.row.in_backward


def prepare(plan: Plan, choice: Choice, *, device: str = "meta") -> Program:
    """Build everything that a plan names.

    Args:
        plan: what to build.
        choice: the optimizer.
        device: where; what it builds is moved to the device that trains later.

    Raises:
        UsageError: the model cannot be built or checkpointed, or a pattern matches nothing.
    """
    source = models.find(plan.model)
    head = tasks.choose(source, plan.task)
    precision = PRECISIONS[plan.precision]
    attention = "eager" if plan.attention == "eager" else None
    with torch.device(device):
        model = build(source, head, attention=attention, dtype=precision.weights)
    return program_of(plan, choice, model, head.task, name=source.name)


def program_of(
    plan: Plan, choice: Choice, model: torch.nn.Module, task: Task, *, name: str = ""
) -> Program:
    """Make a program of a model that is built already.

    Raises:
        UsageError: the model cannot be checkpointed, or a pattern matches nothing.
    """
    if plan.loss_chunks > 1:
        chunk_loss(model, plan.loss_chunks)
    if plan.lora is not None:
        model = lora.attach(model, plan.lora)
    inventory = take(model, name or plan.model, task.name, plan.freeze)
    if not inventory.trainable:
        raise UsageError("Nothing is left to train: freeze fewer parameters.")
    if plan.checkpointing:
        _checkpoint(model, plan.checkpoint_every)
    inputs, notes = _inputs(model, task, plan)
    return Program(
        plan=plan,
        model=model,
        inventory=inventory,
        choice=choice,
        batch=inputs.make if inputs is not None else described(plan.inputs),
        seq=inputs.seq if inputs is not None and inputs.has_tokens else None,
        precision=PRECISIONS[plan.precision],
        max_grad_norm=_clipping(plan),
        assumptions=(*notes, *_said(plan, choice)),
        inputs=inputs,
    )


def _said(plan: Plan, choice: Choice) -> Iterator[str]:
    if plan.optim_in_backward or choice.row.in_backward:
        yield "each parameter is updated inside backward, and its gradient freed at once"
    if plan.resume:
        yield "the checkpoint is read into host memory first, as transformers' Trainer does"
    if plan.eval:
        yield f"evaluation runs {plan.eval} batches of the training's size and keeps their logits"


def _inputs(model: torch.nn.Module, task: Task, plan: Plan) -> tuple[Inputs | None, list[str]]:
    if plan.inputs:
        return None, []
    padding = plan.padding if plan.padding is not None else not task.packed
    inputs = Inputs(model, task, batch=plan.batch, seq=plan.seq, padding=padding)
    notes: list[str] = []
    if inputs.text_only:
        notes.append("batches hold text alone: no images and no sound")
    if inputs.has_tokens:
        notes.append(
            "batches hold padding, so an attention mask is used"
            if padding
            else "sequences are packed: no padding and no attention mask"
        )
    return inputs, notes


def _clipping(plan: Plan) -> float | None:
    if plan.max_grad_norm is not None:
        return plan.max_grad_norm
    return TRAINER_MAX_GRAD_NORM if plan.loop == "trainer" else None


def _checkpoint(model: torch.nn.Module, every: int) -> None:
    enable = getattr(model, "gradient_checkpointing_enable", None)
    supported = getattr(model, "supports_gradient_checkpointing", enable is not None)
    if enable is None or not supported:
        raise UsageError(
            f"{type(model).__name__} does not support gradient checkpointing: "
            "leave --checkpointing out."
        )
    if every == 1:
        enable()
        return
    sparse = getattr(model, "activation_checkpointing_enable", None)
    if sparse is None:
        raise UsageError(
            "This transformers recomputes all layers or none: install 5.23, or leave "
            "--checkpoint-every out."
        )
    sparse(every_n_layers=every)
