"""bitsandbytes: its own host code for CUDA runs, over a library that does nothing."""

from __future__ import annotations

import ctypes
from typing import Any

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

    patches.wrap(ctypes.LibraryLoader, "LoadLibrary", library)
    recorder.kernels_of[NAMESPACE] = Kernels(target)
