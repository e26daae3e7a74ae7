"""Inputs of one optimizer update: flat tensors of equal dtype, and the step's scalars.

Every tensor in a batch is one-dimensional and contiguous; lists run in parallel.
"""

import math
from dataclasses import astuple, dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Scalars:
    """The numbers of one step, the same for a whole batch.

    Attributes:
        lr: Step size, schedule included.
        beta1: Decay of the first moment, in [0, 1).
        beta2: Decay of the second moment, in [0, 1).
        eps: Added to the root of the second moment.
        weight_decay: Decoupled (AdamW) or added to the gradient (Adam), by ``decoupled``.
        step: Count of updates, this one included: from 1.
        maximize: Climb instead of descend.
        decoupled: AdamW's weight decay.
    """

    lr: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    step: int
    maximize: bool
    decoupled: bool

    @property
    def step_size(self) -> float:
        """The factor of m / (sqrt(v) / root_correction + eps), the sign of descent included."""
        return -self.lr / (1.0 - self.beta1**self.step)

    @property
    def root_correction(self) -> float:
        """The root of the second moment's bias correction."""
        return math.sqrt(1.0 - self.beta2**self.step)

    @property
    def shrink(self) -> float:
        """The factor of the parameter by decoupled weight decay; 1.0 when there is none."""
        return 1.0 - self.lr * self.weight_decay if self.decoupled else 1.0

    @property
    def l2(self) -> float:
        """The factor of the parameter that is added to its gradient; 0.0 when decoupled."""
        return 0.0 if self.decoupled else self.weight_decay

    def arguments(self) -> tuple[float, ...]:
        """Give a Triton kernel's scalar arguments in their order."""
        return (
            -1.0 if self.maximize else 1.0,
            self.l2,
            self.beta1,
            1.0 - self.beta1,
            self.beta2,
            1.0 - self.beta2,
            self.shrink,
            self.root_correction,
            self.eps,
            self.step_size,
        )

    def pack(self) -> list[float]:
        """Give the fields as floats, for an operator's schema."""
        return [float(value) for value in astuple(self)]

    @classmethod
    def unpack(cls, packed: list[float]) -> "Scalars":
        """Undo ``pack``."""
        lr, beta1, beta2, eps, weight_decay, step, maximize, decoupled = packed
        return cls(
            lr=lr,
            beta1=beta1,
            beta2=beta2,
            eps=eps,
            weight_decay=weight_decay,
            step=int(step),
            maximize=bool(maximize),
            decoupled=bool(decoupled),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch32bit:
    """Parameters whose moments are float32 (n,)."""

    params: list[Tensor]
    grads: list[Tensor]
    state1: list[Tensor]
    state2: list[Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch8bit:
    """Parameters whose moments are uint8 codes (n,) with float32 scales (ceil(n / 256),)."""

    params: list[Tensor]
    grads: list[Tensor]
    state1: list[Tensor]
    state2: list[Tensor]
    absmax1: list[Tensor]
    absmax2: list[Tensor]
    qmap1: Tensor
    qmap2: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchBF16:
    """bf16 parameters with bf16 moments and correction, and a random key for each."""

    params: list[Tensor]
    grads: list[Tensor]
    exp_avg: list[Tensor]
    exp_avg_sq: list[Tensor]
    shift: list[Tensor]
    keys: list[int]
