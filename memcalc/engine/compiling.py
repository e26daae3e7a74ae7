"""Supports ``torch.compile`` with the real Inductor and Triton.

Kernels are not timed, because over the stub driver all take equal time: the first configuration is
used. Our hooks are hidden from Dynamo, which would trace them.
"""

import functools
import gc
import math
import os
import time
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers

from memcalc.children.child import show
from memcalc.engine import simulated_gpu
from memcalc.engine import torch_internals as internals
from memcalc.engine.patches import Patches

_FIRST = (
    "torch.compile and Triton use each kernel's first configuration; autotuning on a GPU briefly "
    "runs others as well"
)
_TOOK = "torch.compile took {:.0f} s here"
_WARNS = "Using `torch.compile\\(module\\)` when there are global hooks"
_ATEN = {"TORCHINDUCTOR_MAX_AUTOTUNE_GEMM_BACKENDS": "ATEN"}
"""Matrix products use cuBLAS: Inductor chooses templates of Triton by time alone."""
_SETTLES = 2
"""Optimizer steps until a loop has freed what it held while the compiler ran."""


def _run_once(kernel: Callable[[], Any], **_: Any) -> list[float]:
    """Run a kernel once, and return equal times as its benchmark."""
    kernel()
    return [1.0] * 3


class Compiling:
    """An observer of the compiler: it replaces autotuning and reports time and graph breaks."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._began = 0.0
        self._took = 0.0
        self._unsettled = 0
        self._chosen = False
        """True once a configuration was found for the kernel being tuned."""

    def install(self, patches: Patches) -> None:
        """Patch Inductor and Triton as soon as they are imported."""
        warnings.filterwarnings("ignore", message=_WARNS)
        for name, value in _ATEN.items():
            patches.environment(name, value)
        own = {name: os.environ[name] for name in simulated_gpu.CACHES if name in os.environ}
        # A program may have named others by now.
        patches.when_imported("triton", lambda _: os.environ.update(own))
        hide_hooks(patches)
        patches.when_imported("torch._dynamo.callback", self._register_callbacks)
        heuristics = "torch._inductor.runtime.triton_heuristics"
        patches.wrap_later(heuristics, "CachingAutotuner.bench", self._skip_benchmark)
        patches.wrap_later("triton.runtime.autotuner", "Autotuner.run", self._begin_tuning)
        patches.wrap_later("triton.runtime.autotuner", "Autotuner._bench", self._time_config)
        patches.also(optimizers.register_optimizer_step_post_hook(self._collect_garbage).remove)
        patches.also(self._report_compile_time)

    def _skip_benchmark(self, original: Any, *args: Any, **kwargs: Any) -> float:
        """Replace Inductor's benchmark of a configuration: run nothing."""
        self._say(_FIRST)
        return 1.0

    def _begin_tuning(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        """Run Triton's autotuner for a kernel that has no chosen configuration yet."""
        self._chosen = False
        return original(*args, **kwargs)

    def _time_config(self, original: Any, tuner: Any, *args: Any, **kwargs: Any) -> list[float]:
        """Return the time of a kernel's configuration: the first that fits the GPU is fastest."""
        self._say(_FIRST)
        if self._chosen:
            return [2.0] * 3
        vars(tuner)["do_bench"] = _run_once
        timings: list[float] = original(tuner, *args, **kwargs)
        self._chosen = math.isfinite(timings[0])
        return timings

    def _register_callbacks(self, module: ModuleType) -> None:
        handler = getattr(module, "callback_handler", None)
        if handler is not None:
            handler.register_start_callback(self._compile_begins)
            handler.register_end_callback(self._compile_ends)

    def _compile_begins(self, *_: Any) -> None:
        if not self._took and not self._began:
            show("memcalc: torch.compile is compiling ...\n")
        self._began = time.monotonic()

    def _compile_ends(self, *_: Any) -> None:
        self._unsettled = _SETTLES
        if self._began:
            self._took += time.monotonic() - self._began
            self._began = 0.0

    def _collect_garbage(self, *_: Any) -> None:
        """Collect garbage after the first steps: reference cycles of Dynamo hold outputs."""
        if self._unsettled:
            self._unsettled -= 1
            gc.collect()

    def _report_compile_time(self) -> None:
        if not self._took:
            return
        if self._took >= 1:
            self._say(_TOOK.format(self._took))
        for sentence in internals.graph_breaks():
            self._say(sentence)


_HOOKS: tuple[dict[int, Any], ...] = (
    modules._global_forward_pre_hooks,
    modules._global_forward_hooks,
    getattr(modules, "_global_forward_hooks_always_called", {}),
)


class hidden_hooks:  # noqa: N801
    """A context manager that hides global module hooks."""

    def __enter__(self) -> None:
        self._kept = [dict(hooks) for hooks in _HOOKS]
        for hooks in _HOOKS:
            hooks.clear()

    def __exit__(self, *_: object) -> None:
        for hooks, kept in zip(_HOOKS, self._kept, strict=True):
            hooks.update(kept)


def hide_hooks(patches: Patches) -> None:
    """Make compiled code run without our global module hooks."""

    def wrap_compiled(original: Any, context: Any, fn: Any) -> Any:
        made = original(context, fn)
        if isinstance(made, torch.nn.Module | type) or not callable(made):
            return made

        @functools.wraps(made)
        def without_hooks(*args: Any, **kwargs: Any) -> Any:
            with hidden_hooks():
                return made(*args, **kwargs)

        return without_hooks

    patches.wrap_later("torch._dynamo.eval_frame", "_TorchDynamoContext.__call__", wrap_compiled)
