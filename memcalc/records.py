"""The data of memcalc on one page: what is asked, what is known, what is answered.

Plan (what to train and how) -> Inventory (every tensor of the model) -> Trace (every storage's
birth and death) -> Prediction. Records hold unrounded bytes and are never changed; a value that is
not known is ``None`` and its reason stands in ``Prediction.unknown``.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from enum import StrEnum
from math import prod

DTYPE_BYTES = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "complex64": 8,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}

Scalar = str | int | float | bool | None


class Component(StrEnum):
    """Why a storage exists. Each live storage belongs to exactly one component."""

    WEIGHTS = "weights"
    MASTER_WEIGHTS = "master_weights"
    GRADIENTS = "gradients"
    OPTIMIZER_STATE = "optimizer_state"
    ACTIVATIONS = "activations"
    """Saved for backward."""
    TEMPORARIES = "temporaries"
    """Dies inside the phase that made it and is not needed by backward."""
    INPUTS = "inputs"
    BUFFERS = "buffers"
    WORKSPACES = "workspaces"
    """Scratch of kernels and libraries that no tensor of the program shows."""


class Phase(StrEnum):
    """The parts of a training run, in the order they happen."""

    LOAD = "load"
    RESUME = "resume"
    """Loading the optimizer's state of a checkpoint, before the first forward."""
    FORWARD = "forward"
    BACKWARD = "backward"
    STEP = "step"
    """Unscaling, clipping and the optimizer's update."""
    ZERO_GRAD = "zero_grad"
    EVAL = "eval"
    """Evaluation after the last step, with logits kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to train and how; everything that changes a byte."""

    model: str
    task: str = "auto"
    optim: str = "adamw"
    optim_args: tuple[tuple[str, Scalar], ...] = ()
    precision: str = "fp32"
    batch: int = 8
    seq: int | None = None
    """Tokens per sample; ``None``: 512, or the model's longest when that is shorter."""
    grad_accum: int = 1
    checkpointing: bool = False
    checkpoint_every: int = 1
    """With checkpointing: recompute every n-th layer, and keep what the others saved."""
    loss_chunks: int = 1
    """Pieces the loss of a causal language model is made in; each piece's logits live alone."""
    attention: str = "auto"
    gpu: str | None = None
    padding: bool | None = None
    """Batches hold padding, so an attention mask is passed; ``None``: yes, but for causal-lm."""
    cudnn_attention: bool = True
    """False where the run disables cuDNN attention (``torch.backends.cuda.enable_cudnn_sdp``)."""
    freeze: tuple[str, ...] = ()
    """Patterns (fnmatch) of parameter names that do not train."""
    lora: str | None = None
    """``r=16,target=all-linear``: train adapters of this rank instead of the model."""
    loop: str = "plain"
    """Who drives: ``plain`` (the bare optimizer) or ``trainer`` (transformers' Trainer)."""
    max_grad_norm: float | None = None
    """Clip gradients to this norm; ``None``: not in a plain loop, 1.0 under the Trainer."""
    set_to_none: bool = True
    optim_in_backward: bool = False
    """Each parameter is updated, and its gradient freed, as soon as backward has completed it."""
    resume: bool = False
    """The run continues a checkpoint: optimizer state is there before the first forward."""
    eval: int | None = None
    """Evaluate over this many batches after the last step, keeping logits on the device."""
    inputs: tuple[str, ...] = ()
    """``name=dtype[shape]`` of each input of a ``package.module:callable`` model."""
    target: str = "cuda"
    torch: str | None = None
    """The version of PyTorch that will run; ``None``: the installed one."""
    alloc_conf: str = ""
    """``PYTORCH_ALLOC_CONF`` of the run."""

    @property
    def program(self) -> Plan:
        """What plans have in common that run the same model and loop on other sizes and GPUs."""
        return dataclasses.replace(self, batch=1, seq=None, gpu=None, alloc_conf="")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One parameter or buffer of the model; tied ones are listed once, under the first name."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    trainable: bool = True
    module: str = ""
    """Class name of the module that owns it, such as ``Embedding``."""
    buffer: bool = False

    @property
    def numel(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        """Unrounded bytes of the storage."""
        return self.numel * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """Every parameter and buffer of a model, each storage once."""

    model: str
    task: str
    head: str
    """Class that was built, such as ``DistilBertForSequenceClassification``."""
    tensors: tuple[Parameter, ...]

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """Without the buffers."""
        return tuple(tensor for tensor in self.tensors if not tensor.buffer)

    @property
    def trainable(self) -> tuple[Parameter, ...]:
        """The parameters that receive gradients."""
        return tuple(tensor for tensor in self.tensors if tensor.trainable and not tensor.buffer)

    @property
    def numel(self) -> int:
        """Number of parameters, tied ones once."""
        return sum(parameter.numel for parameter in self.parameters)

    @property
    def trainable_numel(self) -> int:
        """Number of parameters that receive gradients."""
        return sum(parameter.numel for parameter in self.trainable)


class Place(StrEnum):
    """Where a piece of optimizer state lives."""

    DEVICE = "device"
    HOST = "host"
    MANAGED = "managed"
    """CUDA managed memory: pages move between host and device, outside PyTorch's allocator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateTensor:
    """One tensor an optimizer keeps, for one parameter or (``parameter`` empty) shared by all."""

    parameter: str
    name: str
    dtype: str
    numel: int
    place: Place = Place.DEVICE

    @property
    def bytes(self) -> int:
        """Unrounded bytes of the storage."""
        return self.numel * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerState:
    """All state of one optimizer over one inventory, each storage once."""

    optimizer: str
    implementation: str
    """Full name of the class and the version the layout was checked against."""
    tensors: tuple[StateTensor, ...]
    notes: tuple[str, ...] = ()
    """What the user should know, such as which tensors stay in 32 bit and why."""

    def total(self, place: Place) -> int:
        """Bytes that live in one place."""
        return sum(tensor.bytes for tensor in self.tensors if tensor.place is place)


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """One piece of device memory and why it was there."""

    bytes: int
    component: Component
    phase: Phase
    """The phase it was born in."""
    step: int
    module: str = ""
    op: str = ""
    dtype: str = ""
    """Of the first tensor that used it; empty for scratch, which is plain bytes."""
    until: str = ""
    """What autograd was running when it died, such as ``MulBackward0``; empty: nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """From event ``index`` on, this phase of this step runs."""

    index: int
    phase: Phase
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A simulated run of some optimizer steps: every storage's birth and death, in order."""

    storages: tuple[Storage, ...]
    events: tuple[int, ...]
    """``n``: storage ``n`` is born; ``~n``: it dies."""
    marks: tuple[Mark, ...]
    inventory: Inventory
    steps: int
    seq: int | None = None
    flops: int | None = None
    """Floating-point operations of products, convolutions and attention in the last step."""
    assumptions: tuple[str, ...] = ()
    uncounted: tuple[str, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PhasePeak:
    """The highest level inside one phase of the steady step, rung by rung."""

    phase: Phase
    requested: int
    allocated: int | None = None
    reserved: int | None = None
    first_step_allocated: int | None = None
    """The same phase in the first step, where optimizer state may not exist yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A figure known only within limits."""

    low: int
    likely: int | None
    high: int
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """The ladder at the peak: each rung at least the one before.

    Raises:
        ValueError: the rungs are out of order.
    """

    phase: Phase
    requested: int
    allocated: int | None
    reserved: int | None
    process_used: int | None

    def __post_init__(self) -> None:
        known = [r for r in (self.requested, self.allocated, self.reserved, self.process_used) if r]
        if known != sorted(known):
            raise ValueError(f"ladder out of order: {self}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A well-known rule of thumb, shown beside the exact figure and never instead of it."""

    name: str
    bytes_per_parameter: float
    bytes: int


class Verdict(StrEnum):
    """Does a run fit a GPU? Decided by replaying it at the device's real size."""

    FITS = "fits"
    TOO_CLOSE = "too close to call"
    """It fits with the smallest context that is likely, and not with the largest."""
    DOES_NOT_FIT = "does not fit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Does the peak fit a GPU, and by how much."""

    gpu: str
    capacity: int
    needed: int
    metric: str
    """The rung that was compared: ``process_used``, or ``allocated`` where no more is known."""
    verdict: Verdict | None = None
    """``None`` in files of earlier versions."""
    needed_high: int | None = None
    """``needed`` with the largest context."""
    retries: int = 0
    """How often the allocator gives its cache back to go on (``num_alloc_retries``)."""

    @property
    def margin(self) -> int:
        """Bytes left over; negative when it does not fit."""
        return self.capacity - self.needed


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The answer to one plan."""

    plan: Plan
    head: str
    task: str
    seq: int | None
    """Tokens per sample that were settled on; ``None`` where inputs have none."""
    parameters: int
    parameter_tensors: int
    trainable: int
    components: dict[Component, int]
    """Bytes at the peak, by component; they sum to the peak's requested bytes."""
    phases: tuple[PhasePeak, ...]
    peak: Peak
    optimizer_state: OptimizerState
    rules_of_thumb: tuple[Rule, ...]
    method: str
    """``trace`` (the real code ran on a simulated GPU) or ``analytic`` (closed form)."""
    gradients: int | None = None
    """Bytes of all gradients together, as the optimizer finds them."""
    context: Span | None = None
    fit: Fit | None = None
    assumptions: tuple[str, ...] = ()
    uncounted: tuple[str, ...] = ()
    unknown: dict[str, str] = field(default_factory=dict)
    """Why a figure is ``None``, by its name."""
    versions: dict[str, str] = field(default_factory=dict)

    def _repr_html_(self) -> str:
        from memcalc.report.notebook import prediction

        return prediction(self)
