"""What a simulated run leaves be: compilers, trackers, and processes that the script starts."""

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

KEEP_TRACKERS = "MEMCALC_TRACKERS"
"""Variable of the environment that leaves trackers on."""
_OFF = {"WANDB_MODE": "disabled", "COMET_MODE": "disabled", "NEPTUNE_MODE": "debug"}
"""How trackers are told to keep still, by their own documentation."""


class _NoWriter:
    """Takes what TensorBoard's event file would be told."""

    def __init__(self, log_dir: Any = "", *args: Any, **kwargs: Any) -> None:
        self._folder = str(log_dir)

    def get_logdir(self) -> str:
        """Where nothing is written."""
        return self._folder

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **kwargs: None


_COMPILED = (
    "what it fuses is not stored on a GPU, where peaks are often lower, and mode='reduce-overhead' "
    "keeps a memory pool; --backend driver runs the compiler"
)


def install(patches: Patches, say: Callable[[str], None]) -> None:
    """Compile nothing, track nothing unless ``MEMCALC_TRACKERS`` is set, and tell of processes.

    Args:
        patches: what is changed.
        say: told what was not done.
    """

    def compile(original: Any, *args: Any, **kwargs: Any) -> Any:
        import torch._dynamo

        patches.set(torch._dynamo.config, "disable", True)
        if not _importing():
            at = place.line()
            say(f"torch.compile runs the eager code{f' ({at})' if at else ''}: {_COMPILED}")
        return original(*args, **kwargs)

    def start(original: Any, *args: Any, **kwargs: Any) -> Any:
        at = place.line()
        say(f"processes that the script starts{f' ({at})' if at else ''} have no GPU of their own")
        return original(*args, **kwargs)

    def profile(original: Any, *args: Any, **kwargs: Any) -> None:
        if kwargs.get("use_device") or kwargs.get("use_cuda"):
            # A build without CUDA has nothing to profile it by, and dies of that.
            kwargs = {**kwargs, "use_cpu": True, "use_device": None}
            kwargs.pop("use_cuda", None)
            say("the profiler sees the host only")
        original(*args, **kwargs)

    patches.wrap(torch, "compile", compile)
    patches.wrap(torch.autograd.profiler.profile, "__init__", profile)
    patches.wrap(os, "fork", start)
    patches.wrap(BaseProcess, "start", start)
    if os.environ.get(KEEP_TRACKERS):
        return
    for name, value in _OFF.items():
        patches.environment(name, value)

    def tensorboard(module: ModuleType) -> None:
        patches.set(module, "FileWriter", _NoWriter)
        say("trackers are off: MEMCALC_TRACKERS=1 leaves them on")

    patches.when_imported("torch.utils.tensorboard.writer", tensorboard)


def _importing() -> bool:
    """A library compiles functions of its own as it is imported; nobody may ever call them."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False
