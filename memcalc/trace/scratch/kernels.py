"""How a simulated run learns what kernels take beside their outputs."""

from __future__ import annotations

from typing import Protocol

from memcalc.kernels.formulas import KernelCall, bounds, scratch, uncounted
from memcalc.kernels.scratch import Allocations
from memcalc.kernels.target import Target
from memcalc.records.trace import Bound


class KernelMemory(Protocol):
    """Says what kernels take beside their outputs, as allocations for the ledger."""

    @property
    def torch(self) -> tuple[int, int]:
        """PyTorch's version, such as (2, 13)."""
        ...

    def transient(self, call: KernelCall) -> tuple[Allocations, Allocations]:
        """Before and after the outputs are made."""
        ...

    def persistent(self, call: KernelCall) -> Allocations:
        """What a library takes once and keeps."""
        ...


class TargetKernelMemory:
    """The kernels of one target, in bytes."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._calls: dict[KernelCall, None] = {}

    def use(self, target: Target) -> None:
        """From now on kernels are those of another target."""
        self._target = target

    @property
    def torch(self) -> tuple[int, int]:
        """PyTorch's version, such as (2, 13)."""
        return self._target.torch

    @property
    def uncounted(self) -> tuple[str, ...]:
        """What of the kernels that ran is not known, in words."""
        return uncounted(self._calls, self._target)

    @property
    def bounds(self) -> tuple[Bound, ...]:
        """What of it is known only within limits."""
        return bounds(self._calls, self._target)

    def transient(self, call: KernelCall) -> tuple[Allocations, Allocations]:
        """Before and after the outputs are made."""
        self._calls[call] = None
        known = scratch(call, self._target)
        return known.before, known.after

    def persistent(self, call: KernelCall) -> Allocations:
        """What a library takes once and keeps."""
        return scratch(call, self._target).before
