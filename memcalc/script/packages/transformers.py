"""transformers: no checkpoints are written or rotated, and fake tensors run eagerly."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from memcalc.script import place
from memcalc.script.patches import Patches
from memcalc.script.recorder import ScriptRecorder


def install(patches: Patches, recorder: ScriptRecorder) -> None:
    """Act when transformers is imported."""

    def eagerly(module: ModuleType) -> None:
        # A fake tensor is taken for a sign of a graph that is being traced.
        if hasattr(module, "is_fake_tensor"):
            patches.set(module, "is_fake_tensor", lambda _: False)

    def not_written(original: Any, *args: Any, **kwargs: Any) -> None:
        at = place.line()
        recorder.assumptions[f"checkpoints are not written{f' ({at})' if at else ''}"] = None

    def trainer(module: ModuleType) -> None:
        patches.wrap(module.Trainer, "_save_checkpoint", not_written)
        patches.wrap(module.Trainer, "save_model", not_written)

    def models(module: ModuleType) -> None:
        patches.wrap(module.PreTrainedModel, "save_pretrained", not_written)

    patches.when_imported("transformers.utils.import_utils", eagerly)
    patches.when_imported("transformers.trainer", trainer)
    patches.when_imported("transformers.modeling_utils", models)
