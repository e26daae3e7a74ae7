"""Triton: kernels are launched and do nothing."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from memcalc.script.patches import Patches
from memcalc.script.recorder import ScriptRecorder
from memcalc.trace.packages.triton import AUTOTUNER, DRIVER, JIT, driver, launched, tried


def install(patches: Patches, recorder: ScriptRecorder) -> None:
    """Let Triton launch kernels that do nothing."""

    def assume(said: str) -> None:
        recorder.assumptions[said] = None

    run = launched(assume)

    def jit(module: ModuleType) -> None:
        patches.wrap(module.JITFunction, "run", lambda _, *args, **kwargs: run(*args, **kwargs))

    def tune(module: ModuleType) -> None:
        patches.wrap(module.Autotuner, "_bench", _tried)

    def drive(module: ModuleType) -> None:
        patches.set(module, "_create_driver", driver)
        patches.set(module.driver, "_default", None)
        patches.set(module.driver, "_active", None)

    patches.when_imported(JIT, jit)
    patches.when_imported(AUTOTUNER, tune)
    patches.when_imported(DRIVER, drive)


def _tried(original: Any, *args: Any, **kwargs: Any) -> list[float]:
    return tried(*args, **kwargs)
