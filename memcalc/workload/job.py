"""What a loop runs: a plan's program, its precision, the job on a device, a script's variables."""

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
from memcalc.records.plan import Plan
from memcalc.registry import Choice
from memcalc.workload import layouts
from memcalc.workload.inputs import Batch, Inputs
from memcalc.workload.layouts import Layout


def scaler_class() -> Any:
    """The class of gradient scalers; PyTorch before 2.3 has one for CUDA alone."""
    return getattr(torch.amp, "GradScaler", torch.cuda.amp.GradScaler)


class Precision(msgspec.Struct, frozen=True, kw_only=True):
    """How weights are stored and in what the forward computes."""

    weights: torch.dtype
    autocast: torch.dtype | None = None
    scaled: bool = False
    """Losses are scaled by ``torch.amp.GradScaler``."""

    def context(self, device_type: str) -> Callable[[], contextlib.AbstractContextManager[Any]]:
        """Make the context that the forward runs in."""
        if self.autocast is None:
            return contextlib.nullcontext
        return lambda: torch.autocast(device_type, dtype=self.autocast)

    def scaler(self, device_type: str) -> Any:
        """Make the gradient scaler, or ``None`` where there is none."""
        if not self.scaled:
            return None
        scaler = scaler_class()
        of_device = scaler is not torch.cuda.amp.GradScaler
        return scaler(device_type) if of_device else scaler()


PRECISIONS = {
    "fp32": Precision(weights=torch.float32),
    "tf32": Precision(weights=torch.float32),
    "amp-fp16": Precision(weights=torch.float32, autocast=torch.float16, scaled=True),
    "amp-bf16": Precision(weights=torch.float32, autocast=torch.bfloat16),
    "bf16+amp": Precision(weights=torch.bfloat16, autocast=torch.bfloat16),
    "bf16": Precision(weights=torch.bfloat16),
    "fp16": Precision(weights=torch.float16),
}


def forward_context(
    plan: Plan, device_type: str
) -> Callable[[], contextlib.AbstractContextManager[Any]]:
    """Make the context of a plan's forward; casts of FSDP2 stand in for autocast."""
    precision = PRECISIONS[plan.precision]
    return precision.context(device_type) if layouts.autocasts(plan) else contextlib.nullcontext


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
    assumptions: tuple[str, ...]
    inputs: Inputs | None = None
    """What makes the batches; ``None`` where the user described them."""

    def resized(self, batch: int, seq: int | None) -> Program:
        """The same program on batches of another size.

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


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What a loop trains; model and optimizer are already on the device."""

    plan: Plan
    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    batch: Callable[[], Batch]
    """Makes one micro-batch on the device."""
    device: str
    """``cuda`` or ``cpu``."""
    max_grad_norm: float | None
    """The norm that the loop clips gradients to; ``None``: it does not."""
    keep_outputs: bool
    """What the model returned lives until the next forward has made new outputs."""
    restore: Callable[[], None] | None = None
    """Loads the optimizer's state of a checkpoint; ``None``: the run starts afresh."""
    kept: dict[str, Any] = {}
    """What a loop made of the job and goes on with, should it run again."""
    simulated: bool = False
    """No data and no numbers: of an evaluation, the batches in the middle are like their
    neighbors and only leave behind what is kept of them."""

    @property
    def layout(self) -> Layout:
        """How the model is spread over GPUs."""
        return layouts.of(self.plan)

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of the layout's wrapper."""
        return layouts.arguments(self.plan)

    @property
    def precision(self) -> Precision:
        """How weights are stored and in what the forward computes."""
        return PRECISIONS[self.plan.precision]

    @property
    def eval_batches(self) -> int:
        """Batches that are evaluated after training."""
        return self.plan.eval or 0

    def evaluates(self, number: int) -> bool:
        """Whether this batch of an evaluation runs through the model."""
        return not self.simulated or number < 2 or number == self.eval_batches - 1

    def quiet(self, last: bool) -> contextlib.AbstractContextManager[None]:
        """What a micro-batch runs in; gradients are exchanged with the last of a step alone.

        Where the plan says so, with each.
        """
        quiet = self.layout.quiet
        if self.plan.grad_accum == 1 or quiet is None or layouts.exchanges_each(self.plan):
            return contextlib.nullcontext()
        return quiet(self.model, last)

    def clip(self, norm: float) -> None:
        """Scale gradients down to a norm."""
        clip = self.layout.clip
        if clip is not None:
            clip(self.model, norm)
        else:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), norm)

    @property
    def wraps(self) -> bool:
        """Return True if the loop's library wraps the model, as the layout leaves that to it."""
        wrapped = self.plan.loop != "plain" and self.layout.handed_over is not None
        return wrapped or self.layout.package == "deepspeed"

    def checked(self) -> Callable[[torch.nn.Module], None]:
        """What checks the model once a loop has wrapped it; to be asked for before."""
        check = self.layout.checked
        return (lambda wrapped: None) if check is None else check(self.model)

    def resume(self) -> None:
        """Load the checkpoint, where there is one."""
        if self.restore is not None:
            self.restore()


@contextlib.contextmanager
def as_found(model: torch.nn.Module) -> Iterator[None]:
    """Undo what others put on a model itself, such as a wrapped ``forward``."""
    before = dict(vars(model))
    try:
        yield
    finally:
        vars(model).clear()
        vars(model).update(before)


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
