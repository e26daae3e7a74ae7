"""How a simulated run learns what kernels take beside their outputs."""

from __future__ import annotations

from typing import Protocol

from memcalc.kernels.formulas import Call, scratch, uncounted
from memcalc.kernels.scratch import Script
from memcalc.kernels.target import Target


class Kernels(Protocol):
    """Says what kernels take beside their outputs, in the ledger's scripts."""

    def scripts(self, call: Call) -> tuple[Script, Script]:
        """Before and after the outputs are made."""
        ...

    def lasting(self, call: Call) -> Script:
        """What a library takes once and keeps."""
        ...


class TargetKernels:
    """Kernels of one target, in bytes."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._calls: dict[Call, None] = {}

    @property
    def uncounted(self) -> tuple[str, ...]:
        """What of the kernels that ran is not known, in words."""
        return uncounted(self._calls, self._target)

    def scripts(self, call: Call) -> tuple[Script, Script]:
        """Before and after the outputs are made."""
        self._calls[call] = None
        known = scratch(call, self._target)
        return known.before, known.after

    def lasting(self, call: Call) -> Script:
        """What a library takes once and keeps."""
        return scratch(call, self._target).before
