"""AdamW in bf16 alone: weights, moments and a correction term, 10 bytes with the gradient."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from memcalc.optim.base import BatchedOptimizer, Work, check_adam_settings, collect_scalars
from memcalc.optim.ops import run
from memcalc.optim.rounding import stream_key


def schedule_factor(step: int, *, preheat_steps: int, decay_power: float) -> float:
    """Return the factor of the learning rate at a step: linear preheat, then power decay.

    With P = max(preheat_steps, 1): step / P up to step P, then (step / P) ** -decay_power.
    decay_power 0 keeps the rate, 0.5 is the inverse square root, 1 the inverse.

    Args:
        step: Count of updates, the coming one included: from 1.
        preheat_steps: Updates until the full rate; 0 or 1 for none.
        decay_power: At least 0.
    """
    progress = step / max(preheat_steps, 1)
    return progress if progress < 1.0 else progress**-decay_power


class AdamWBF16(BatchedOptimizer):
    """AdamW for bf16 parameters that does not lose updates too small for bf16.

    The part of each update that the parameter could not take is kept in ``shift`` and taken into
    account at the next step.  Moments and shift are rounded stochastically, which keeps the
    second moment from freezing; the randomness is a function of ``seed``, the step and the
    element, so equal runs are equal and a resumed run continues bit for bit.

    Args:
        params: bfloat16 parameters or groups of them.
        lr: Learning rate, a float or a tensor of one element; a tensor on a GPU is read back
            at every step, which waits for the GPU.
        betas: Decays of the two moments.
        eps: Added to the root of the second moment.
        weight_decay: Decoupled, at least 0.
        maximize: Climb instead of descend.
        preheat_steps: Steps over which the rate grows linearly to ``lr``; 0 for none.
        decay_power: After the preheat the rate falls as the step to the power of
            ``-decay_power``; 0 for no decay.  Multiplies the rate that an LR scheduler sets.
        seed: Of the stochastic rounding.

    Sources: the compensated update, Zamirai et al., "Revisiting BFloat16 Training" (2020), and
    the adamw_bfloat16 project; AdamW, Loshchilov and Hutter, ICLR 2019.
    """

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        maximize: bool = False,
        preheat_steps: int = 0,
        decay_power: float = 0.0,
        seed: int = 0,
    ) -> None:
        super().__init__(
            params,
            {
                "lr": lr,
                "betas": betas,
                "eps": eps,
                "weight_decay": weight_decay,
                "maximize": maximize,
                "preheat_steps": preheat_steps,
                "decay_power": decay_power,
                "seed": seed,
            },
        )

    def step(self, closure: Callable[[], Any] | None = None, *, zero_grad: bool = False) -> Any:
        """Update every parameter that has a gradient; return the closure's loss, or None.

        Args:
            closure: Reevaluates the model, with gradients, and returns the loss.
            zero_grad: Also set all gradients to None, which frees them.

        Raises:
            RuntimeError: a gradient is sparse.
        """
        loss = super().step(closure)
        if zero_grad:
            self.zero_grad(set_to_none=True)
        return loss

    def _check_group(self, group: dict[str, Any]) -> None:
        check_adam_settings(group)
        for name in ("preheat_steps", "decay_power"):
            if not group[name] >= 0:
                raise ValueError(f"{name} must be at least 0, but is {group[name]}")
        for param in group["params"]:
            if param.dtype != torch.bfloat16:
                raise TypeError(
                    f"AdamWBF16 trains bfloat16 parameters, but one is {param.dtype}: "
                    "convert the model with model.to(torch.bfloat16) first, "
                    "or train it with AdamW8bit"
                )

    def _initial_state(self, param: Tensor, group: dict[str, Any]) -> dict[str, Tensor]:
        names = ("exp_avg", "exp_avg_sq", "shift")
        return {name: torch.zeros_like(param, dtype=torch.bfloat16) for name in names}

    def _complete(self, param: Tensor, values: dict[str, Any]) -> None:
        """Convert one parameter's loaded state to bf16, adding ``shift`` if it is missing."""
        super()._complete(param, values)
        for name in ("exp_avg", "exp_avg_sq", "shift"):
            if name in values:
                values[name] = values[name].to(torch.bfloat16)
        if "exp_avg" in values and "shift" not in values:
            values["shift"] = torch.zeros_like(values["exp_avg"])

    def _update(self, works: list[Work], group: dict[str, Any], step: int) -> None:
        factor = schedule_factor(
            step, preheat_steps=group["preheat_steps"], decay_power=group["decay_power"]
        )
        names = ("exp_avg", "exp_avg_sq", "shift")
        run(
            "adamw_bf16",
            [w.param for w in works],
            [w.grad for w in works],
            *([w.state[name] for w in works] for name in names),
            [stream_key(group["seed"], step, w.ordinal) for w in works],
            scalars=collect_scalars(group, step, lr=float(group["lr"]) * factor, decoupled=True),
        )
