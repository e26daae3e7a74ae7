"""flash-attn: a script finds it where it asks for it, installed here or not."""

from __future__ import annotations

import contextlib
from types import ModuleType
from typing import Any

from memcalc.kernels.target import Target
from memcalc.records.plan import FLASH_ATTN
from memcalc.script.patches import Patches
from memcalc.script.recorder import ScriptRecorder
from memcalc.trace.packages.flash_attn import NAMESPACES, Kernels
from memcalc.workload.flash_attn import VERSION, can_run, provide

_STANDS = (
    f"flash-attn is not installed here: what {VERSION} allocates is known, and stands in its place"
)


def install(patches: Patches, recorder: ScriptRecorder, target: Target, *, there: bool) -> None:
    """Know its operators, and let transformers find it once a model shall run by it.

    Args:
        patches: what is changed.
        recorder: the session's.
        target: the GPU.
        there: whoever imports it finds it, from the start.
    """
    for name in NAMESPACES:
        recorder.kernels_of[name] = Kernels(target)
    standing = contextlib.ExitStack()
    patches.also(standing.close)
    given: list[bool] = []

    def give() -> None:
        if not given and not can_run():
            standing.enter_context(provide())
            recorder.assumptions[_STANDS] = None
        given.append(True)

    def made(original: Any, model: Any, config: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(config, "_attn_implementation", None) == FLASH_ATTN:
            give()
        return original(model, config, *args, **kwargs)

    def told(original: Any, model: Any, implementation: Any, *args: Any, **kwargs: Any) -> Any:
        named = implementation.values() if isinstance(implementation, dict) else [implementation]
        if FLASH_ATTN in named:
            give()
        return original(model, implementation, *args, **kwargs)

    def models(module: ModuleType) -> None:
        patches.wrap(module.PreTrainedModel, "__init__", made)
        if hasattr(module.PreTrainedModel, "set_attn_implementation"):
            patches.wrap(module.PreTrainedModel, "set_attn_implementation", told)

    patches.when_imported("transformers.modeling_utils", models)
    if there:
        give()
