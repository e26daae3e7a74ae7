"""What a simulated run leaves be: compilers, profilers, and processes that the script starts."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from types import ModuleType
from typing import Any

import torch

from memcalc.script import place
from memcalc.script.patches import Patches

_COMPILED = (
    "what it fuses is not stored on a GPU, where peaks are often lower, and mode='reduce-overhead' "
    "keeps a memory pool; --backend driver runs the compiler"
)


def install(patches: Patches, say: Callable[[str], None]) -> None:
    """Compile nothing, profile the host alone, and tell of processes.

    Args:
        patches: what is changed.
        say: told what was not done.
    """

    def compile(original: Any, *args: Any, **kwargs: Any) -> Any:
        import torch._dynamo

        patches.set(torch._dynamo.config, "disable", True)
        if not _importing():
            say(f"{place.named('torch.compile runs the eager code')}: {_COMPILED}")
        # Nothing is compiled, which is an error where all has to be (2.13).
        return original(*args, **{**kwargs, "fullgraph": False})

    def start(original: Any, *args: Any, **kwargs: Any) -> Any:
        say(f"{place.named('processes that the script starts')} have no GPU of their own")
        return original(*args, **kwargs)

    def profile(original: Any, *args: Any, **kwargs: Any) -> None:
        if kwargs.get("use_device") or kwargs.get("use_cuda"):
            # A build without CUDA has nothing to profile it by, and dies of that.
            kwargs = {**kwargs, "use_cpu": True, "use_device": None}
            kwargs.pop("use_cuda", None)
            say("the profiler sees the host only")
        original(*args, **kwargs)

    def no_ranges(original: Any, self: Any, enabled: bool = True, *args: Any, **more: Any) -> None:
        original(self, False, *args, **more)

    def flex(module: ModuleType) -> None:
        # It compiles by itself, and takes no other way unless its own debugging asks for that.
        patches.set(module, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)

    patches.when_imported("torch.nn.attention.flex_attention", flex)
    patches.wrap(torch, "compile", compile)
    patches.wrap(torch.autograd.profiler.profile, "__init__", profile)
    patches.wrap(torch.autograd.profiler.emit_nvtx, "__init__", no_ranges)
    patches.wrap(os, "fork", start)
    patches.wrap(BaseProcess, "start", start)


def _importing() -> bool:
    """A library compiles functions of its own as it is imported; nobody may ever call them."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False
