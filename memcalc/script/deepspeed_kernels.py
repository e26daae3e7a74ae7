"""DeepSpeed's compiled operators, which are not compiled here. Read in 0.19.8."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from memcalc.engine.patches import Patches
from memcalc.errors import EstimateError
from memcalc.script.missing_extension import Inert

_IN_PLACE = frozenset(
    "cpu_adagrad cpu_adam cpu_lion fused_adam fused_lamb fused_lion utils".split()
)
"""Those that write into what they are given, and make nothing."""


def without_kernels(patches: Patches, say: Callable[[str], object]) -> None:
    """Let them do nothing, and refuse those that take memory.

    Args:
        patches: what is changed.
        say: told what is assumed.
    """

    def load(original: Any, builder: Any, *args: Any, **kwargs: Any) -> Any:
        if builder.name not in _IN_PLACE:
            raise EstimateError(
                f"DeepSpeed's compiled operator {builder.name} is not simulated: memcalc does not "
                "know what it takes of the GPU. Leave it out of the configuration."
            )
        say("DeepSpeed's compiled optimizers run without their kernels, which take no memory")
        return Inert()

    def operators(module: ModuleType) -> None:
        patches.wrap(module.OpBuilder, "load", load)

    patches.when_imported("deepspeed.ops.op_builder.builder", operators)
