"""The kernels of a script, and what it sets in its environment for them."""

from __future__ import annotations

import os

from msgspec.structs import replace

from memcalc.kernels import blas
from memcalc.kernels.formulas import KernelCall
from memcalc.kernels.scratch import Allocations
from memcalc.kernels.target import Target
from memcalc.trace.scratch.kernels import TargetKernelMemory


class ScriptKernels(TargetKernelMemory):
    """What cuBLAS' workspace is like is settled by the environment at the first product."""

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self._workspace: int | None = None
        self._settled = False

    def use(self, target: Target) -> None:
        """From now on kernels are those of another target."""
        super().use(replace(target, cublas_workspace=self._workspace))

    def transient(self, call: KernelCall) -> tuple[Allocations, Allocations]:
        """Before and after the outputs are made."""
        self._settle(call)
        return super().transient(call)

    def persistent(self, call: KernelCall) -> Allocations:
        """What a library takes once and keeps."""
        self._settle(call)
        return super().persistent(call)

    def _settle(self, call: KernelCall) -> None:
        if self._settled or not call.name.startswith("cublas"):
            return
        self._settled = True
        self._workspace = blas.configured(os.environ.get(blas.CONFIG, ""))
        self.use(self._target)
