"""torch.distributed.pipelining on one rank: what neighbours would say of their tensors.

Stages tell each other the shapes of what they pass on. Here the next stage returns gradients like
the outputs it was given, and a stage before a later one of this rank passes on what the first does.
"""

from types import ModuleType
from typing import Any

from memcalc.engine.patches import Patches


def install(patches: Patches) -> None:
    """Answer from now on, where stages ask each other before the first step (since 2.11)."""
    patches.when_imported("torch.distributed.pipelining.stage", lambda m: _answer(m, patches))


def _answer(module: ModuleType, patches: Patches) -> None:
    if not hasattr(module, "_StageBackwardMeta"):
        return
    passed_on: list[Any] = []

    def sent(original: Any, stage: Any, meta: Any, to: int) -> None:
        if to > stage.stage_index:
            passed_on.append(meta)

    def received(original: Any, stage: Any, source: int) -> Any:
        if source > stage.stage_index:
            like_outputs = module._derive_grad_metas(stage._stage_meta.outputs)
            return module._StageBackwardMeta(backward_metas=like_outputs)
        return passed_on[0] if passed_on else original(stage, source)

    patches.wrap(module.PipelineStage, "_send_meta", sent)
    patches.wrap(module.PipelineStage, "_recv_meta", received)
