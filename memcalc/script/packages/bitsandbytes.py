"""bitsandbytes: its own host code for CUDA runs, over a library that does nothing."""

from __future__ import annotations

import ctypes
from types import ModuleType
from typing import Any

import torch

from memcalc.kernels.target import Target
from memcalc.script.patches import Patches
from memcalc.script.recorder import ScriptRecorder
from memcalc.trace.packages.bitsandbytes import NAMESPACE, Kernels, Library


def install(patches: Patches, recorder: ScriptRecorder, target: Target) -> None:
    """Be there before bitsandbytes loads its library."""

    def library(original: Any, loader: Any, name: Any, *args: Any, **kwargs: Any) -> Any:
        if "libbitsandbytes_cuda" in str(name):
            return Library()
        return original(loader, name, *args, **kwargs)

    def functional(module: ModuleType) -> None:
        operators, name = torch.ops.bitsandbytes, "optimizer_update_32bit"
        patches.set(operators, name, _WithNumbers(getattr(operators, name)))

    patches.wrap(ctypes.LibraryLoader, "LoadLibrary", library)
    patches.when_imported("bitsandbytes.functional", functional)
    recorder.kernels_of[NAMESPACE] = Kernels(target)


class _WithNumbers:
    """LAMB and LARS hand over a norm for a number, which C++ reads of real tensors alone."""

    def __init__(self, operator: Any) -> None:
        self._operator = operator
        arguments = operator.default._schema.arguments
        self._numbers = [isinstance(one.type, torch.FloatType) for one in arguments]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The operator, of numbers."""
        given = (_read(*one) for one in zip(args, self._numbers, strict=False))
        return self._operator(*given, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._operator, name)


def _read(value: Any, number: bool) -> Any:
    return value.item() if number and isinstance(value, torch.Tensor) else value
