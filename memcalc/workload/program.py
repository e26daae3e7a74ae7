"""A plan made ready to run on a real or a simulated device: its model and its batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import torch
from msgspec.structs import replace

from memcalc.errors import UsageError
from memcalc.records.model import Inventory
from memcalc.records.plan import Plan
from memcalc.registry import Choice
from memcalc.workload.inputs import Batch, Inputs


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
