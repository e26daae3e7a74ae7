"""torch.distributed.pipelining on one rank: shapes of tensors that neighbours would send.

Stages send each other the shapes of their tensors, unless all were given: the shapes given to this
rank count for all. The next stage returns gradients like the outputs it received, and the stage
before a later one of this rank passes on what the first does.
"""

from types import ModuleType
from typing import Any

import torch

from memcalc.engine.patches import Patches


def install(patches: Patches, *, alone: bool = False) -> None:
    """Patch pipeline stages to need no messages on shapes before the first step (since 2.11).

    ``alone``: no other rank runs beside this one, and what arrives is like the example inputs.
    """
    name = "torch.distributed.pipelining.stage"
    patches.when_imported(name, lambda module: _patch_stages(module, patches, alone))


def _patch_stages(module: ModuleType, patches: Patches, alone: bool) -> None:
    if not hasattr(module, "_StageBackwardMeta"):
        return
    passed_on: list[Any] = []

    def keep_sent_shapes(original: Any, stage: Any, meta: Any, to: int) -> None:
        if to > stage.stage_index:
            passed_on.append(meta)
        if not alone:
            original(stage, meta, to)

    def receive_shapes(original: Any, stage: Any, source: int) -> Any:
        if source > stage.stage_index:
            like_outputs = module._derive_grad_metas(stage._stage_meta.outputs)
            return module._StageBackwardMeta(backward_metas=like_outputs)
        if alone and not passed_on:
            return module._StageForwardMeta(forward_metas=stage._user_meta.inputs)
        return passed_on[0] if passed_on else original(stage, source)

    def vote_alone(
        original: Any, stage: Any, has_backward: bool, received_acc: torch.Tensor | None = None
    ) -> torch.Tensor:
        dynamic = module.InferenceMode.needs_dynamic(stage._user_meta, has_backward)
        own = torch.tensor([int(not dynamic)], dtype=torch.int32, device=stage.device)
        return own if received_acc is None else received_acc * own

    stages = module.PipelineStage
    patches.wrap(stages, "_send_meta", keep_sent_shapes)
    patches.wrap(stages, "_recv_meta", receive_shapes)
    if hasattr(stages, "_warmup_forward_vote"):
        patches.wrap(stages, "_warmup_forward_vote", vote_alone)
        patches.set(stages, "_warmup_backward_result", lambda _, received_result: received_result)
