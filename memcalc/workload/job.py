"""A plan's program, the job that a loop runs, and the variables of a training script."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import torch
from msgspec.structs import replace
from torch.utils._pytree import tree_map_only

from memcalc.errors import UsageError
from memcalc.records.model import Inventory
from memcalc.records.names import AUTOCAST_DTYPES, WEIGHT_DTYPES
from memcalc.records.plan import Plan
from memcalc.registry import Choice
from memcalc.workload import layouts
from memcalc.workload.inputs import Batch, Inputs
from memcalc.workload.layouts import Layout

Context = Callable[[], contextlib.AbstractContextManager[Any]]


def scaler_class() -> Any:
    """Return PyTorch's GradScaler class, under its name of this release."""
    return getattr(torch.amp, "GradScaler", torch.cuda.amp.GradScaler)


class Precision(msgspec.Struct, frozen=True, kw_only=True):
    """The dtypes of weights and of the forward."""

    weights: torch.dtype
    autocast: torch.dtype | None = None
    scaled: bool = False
    """Losses are scaled by ``torch.amp.GradScaler``."""


PRECISIONS = {
    name: Precision(
        weights=getattr(torch, WEIGHT_DTYPES.get(name, "float32")),
        autocast=getattr(torch, AUTOCAST_DTYPES.get(name, ""), None),
        scaled=name == "amp-fp16",
    )
    for name in ("fp32", "tf32", *AUTOCAST_DTYPES, *WEIGHT_DTYPES)
}


@contextlib.contextmanager
def forward_context(plan: Plan, device_type: str) -> Iterator[None]:
    """Enter a plan's contexts for forward: autocast, activation offload."""
    dtype, casts = PRECISIONS[plan.precision].autocast, layouts.autocasts(plan)
    offload: Any = torch.autograd.graph.save_on_cpu(pin_memory=device_type == "cuda")
    with (
        torch.autocast(device_type, dtype=dtype) if casts else contextlib.nullcontext(),
        offload if plan.offload_activations else contextlib.nullcontext(),
    ):
        yield


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """A model to run, which is not on the device yet, with its batches."""

    plan: Plan
    model: torch.nn.Module
    inventory: Inventory
    choice: Choice
    batch: Callable[[Any], Batch]
    """Makes one micro-batch on the device it is given."""
    seq: int | None
    """Tokens per sample; ``None`` for inputs without tokens."""
    assumptions: tuple[str, ...]
    inputs: Inputs | None = None
    """The maker of the batches, or None if the user described them."""

    def resize(self, batch: int, seq: int | None) -> Program:
        """Return the program with another batch size and sequence length.

        Raises:
            UsageError: the model does not take such sequences, or its inputs are described.
        """
        if self.inputs is None:
            raise UsageError(
                "Batch and sequence of a model with --input are in its description: "
                "name a model that memcalc makes batches for."
            )
        inputs = self.inputs.resize(batch, seq)
        return replace(
            self,
            plan=replace(self.plan, batch=batch, seq=seq),
            batch=inputs.make,
            seq=inputs.seq if inputs.has_tokens else None,
            inputs=inputs,
        )

    @property
    def in_backward(self) -> bool:
        """True if each parameter is updated inside backward, as its gradient is made."""
        return self.plan.optim_in_backward or self.choice.row.in_backward


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A training run for a loop; model and optimizer are already on the device."""

    plan: Plan
    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    batch: Callable[[], Batch]
    """Makes one micro-batch on the device."""
    device: str
    """``cuda`` or ``cpu``."""
    max_grad_norm: float | None
    """The norm that the loop clips gradients to, if any."""
    keep_outputs: bool
    """The model's outputs live until the next forward has made new ones."""
    restore: Callable[[], None] | None = None
    """Loads the optimizer's state of a checkpoint, in a run that resumes."""
    kept: dict[str, Any] = {}
    """Objects that a loop made of the job and uses again in its next run."""
    simulated: bool = False
    """No data and no numbers: an evaluation does not run the batches in the middle, which are like
    their neighbors, and only makes what it keeps of them."""

    @property
    def layout(self) -> Layout:
        """The layout of the model over GPUs."""
        return layouts.of(self.plan)

    @property
    def options(self) -> dict[str, Any]:
        """The arguments of the layout's wrapper."""
        return layouts.arguments(self.plan)

    @property
    def precision(self) -> Precision:
        """The dtypes of weights and of the forward."""
        return PRECISIONS[self.plan.precision]

    @property
    def eval_batches(self) -> int:
        """The number of batches that are evaluated after training."""
        return self.plan.eval or 0

    def evaluates(self, number: int) -> bool:
        """Return True if the evaluation batch of this index really runs through the model."""
        return not self.simulated or number < 2 or number == self.eval_batches - 1

    def sync_gradients(self, last: bool) -> contextlib.AbstractContextManager[None]:
        """Return the context of a micro-batch; only a step's last one exchanges gradients."""
        quiet = self.layout.quiet
        each = dict(self.plan.parallel_args).get(layouts.NO_SYNC) is False
        if self.plan.grad_accum == 1 or quiet is None or each:
            return contextlib.nullcontext()
        return quiet(self.model, last)

    def clip(self, norm: float) -> None:
        """Clip the gradients to this total norm, by the layout's own function if it has one."""
        if (clip := self.layout.clip) is not None:
            clip(self.model, norm)
        else:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), norm)

    @property
    def wraps(self) -> bool:
        """True if accelerate or DeepSpeed wraps the model, not the layout."""
        wrapped = self.plan.loop != "plain" and self.layout.handed_over is not None
        return wrapped or self.layout.package == "deepspeed"

    def check_wrapped(self) -> Callable[[torch.nn.Module], None]:
        """Return a function that checks the model after the loop has wrapped it."""
        check = self.layout.checked
        return (lambda wrapped: None) if check is None else check(self.model)

    def resume(self) -> None:
        """Load the optimizer's state of a checkpoint, in a run that resumes."""
        if self.restore is not None:
            self.restore()


@contextlib.contextmanager
def restore_attributes(model: torch.nn.Module) -> Iterator[None]:
    """Restore the model's own attributes after the block, such as a wrapped ``forward``."""
    before = dict(vars(model))
    try:
        yield
    finally:
        vars(model).clear()
        vars(model).update(before)


def find_loss(outputs: Any) -> torch.Tensor:
    """Return the loss in a model's outputs, or the mean of its first floating-point tensor.

    A model that returns no ``loss`` and no scalar is trained on the mean of its first
    floating-point output.

    Raises:
        TypeError: the model returned no floating-point tensor.
    """
    loss = outputs.get("loss") if isinstance(outputs, dict) else getattr(outputs, "loss", None)
    if isinstance(loss, torch.Tensor):
        return loss
    first = _find_tensor(outputs, "", "train on")
    return first if first.dim() == 0 else first.float().mean()


def _find_logits(outputs: Any) -> torch.Tensor:
    """Return the tensor to compare with labels: ``logits``, or the first output except the loss."""
    logits = getattr(outputs, "logits", None)
    return logits if isinstance(logits, torch.Tensor) else _find_tensor(outputs, "loss", "keep")


def _find_tensor(outputs: Any, but: str, use: str) -> torch.Tensor:
    """Return the first floating-point tensor in outputs that is not named ``but``."""
    if isinstance(outputs, torch.Tensor):
        return outputs
    for name, value in outputs.items() if hasattr(outputs, "items") else enumerate(outputs):
        if name != but and isinstance(value, torch.Tensor) and value.is_floating_point():
            return value
    raise TypeError(f"the model returned no floating-point tensor to {use}")


def allocate_like(value: Any) -> Any:
    """Return a structure of empty tensors like the ones in a value."""
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

    def __init__(self, job: Job, model: Any, context: Context = contextlib.nullcontext) -> None:
        self._job = job
        self._model = model
        self._context = context

    def forward(self) -> None:
        """Run ``outputs = model(**batch)`` and ``loss = outputs.loss``, or both in one line."""
        self.batch = self._job.batch()
        with self._context():
            self.outputs = self._model(**self.batch)
            self.loss = find_loss(self.outputs)
        if not self._job.keep_outputs:
            self.outputs = None

    def evaluate(self) -> None:
        """Run the evaluation batches without gradients and collect their logits."""
        kept: list[torch.Tensor] = []
        self._model.eval()
        with torch.no_grad():
            for number in range(self._job.eval_batches):
                if not self._job.evaluates(number):
                    kept.append(allocate_like(kept[-1]))
                    continue
                self.batch = self._job.batch()
                with self._context():
                    self.outputs = self._model(**self.batch)
                kept.append(_find_logits(self.outputs))
                if not self._job.keep_outputs:
                    self.outputs = None
        self._model.train()
