"""The numbers of one optimizer step."""

import math
from typing import NamedTuple


class Scalars(NamedTuple):
    """The numbers of one step, equal for a whole batch.

    An operator's argument is a list of these floats, with ``step`` and the two switches.

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
    step: float
    maximize: float
    decoupled: float

    @property
    def step_size(self) -> float:
        """The factor of m / (sqrt(v) / root_correction + eps), with the sign of descent."""
        return -self.lr / (1.0 - math.pow(self.beta1, self.step))

    @property
    def root_correction(self) -> float:
        """The root of the second moment's bias correction."""
        return math.sqrt(1.0 - math.pow(self.beta2, self.step))

    @property
    def shrink(self) -> float:
        """The factor of the parameter by decoupled weight decay; 1.0 without decay."""
        return 1.0 - self.lr * self.weight_decay if self.decoupled else 1.0

    @property
    def l2(self) -> float:
        """The factor of the parameter that is added to its gradient; 0.0 when decoupled."""
        return 0.0 if self.decoupled else self.weight_decay

    def arguments(self) -> tuple[float, ...]:
        """Return the scalar arguments of a Triton kernel, in their order."""
        sign = -1.0 if self.maximize else 1.0
        first, second = (self.beta1, 1.0 - self.beta1), (self.beta2, 1.0 - self.beta2)
        factors = self.shrink, self.root_correction, self.eps, self.step_size
        return (sign, self.l2, *first, *second, *factors)
