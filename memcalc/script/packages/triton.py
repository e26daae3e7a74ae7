"""Triton: of several configurations of a kernel the first is taken, for no clock can choose."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from memcalc.engine.patches import Patches

_FIRST = "of Triton kernels that tune themselves by time, the first configuration runs"


def install(patches: Patches, say: Callable[[str], None]) -> None:
    """Act when Triton's tuner is imported.

    Args:
        patches: what is changed.
        say: told that nothing was timed.
    """

    def tune(module: ModuleType) -> None:
        def timed(original: Any, *args: Any, **kwargs: Any) -> list[float]:
            say(_FIRST)
            return [1.0, 1.0, 1.0]

        patches.wrap(module.Autotuner, "_bench", timed)

    patches.when_imported("triton.runtime.autotuner", tune)
