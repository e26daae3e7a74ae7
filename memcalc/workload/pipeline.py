"""Stages of a language model, and the schedule of torch.distributed.pipelining that runs them."""

import copy
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from memcalc.errors import UsageError
from memcalc.imports import line


class Pipeline(nn.Module):
    """The stages of one rank."""

    def __init__(self, parts: dict[int, nn.Module], count: int, kind: Any, mesh: Any) -> None:
        """Take parts by the numbers of their stages, how many stages there are, and a schedule."""
        super().__init__()
        self.parts = nn.ModuleList(parts.values())
        self.numbers, self.count, self.kind, self.mesh = tuple(parts), count, kind, mesh

    def schedule(self, passed: torch.Tensor, microbatches: int, loss: Any) -> Any:
        """Make the schedule; its stages pass on tensors like one on the meta device.

        Raises:
            UsageError: PyTorch refuses the schedule.
        """
        from torch.distributed.pipelining import PipelineStage
        from torch.distributed.pipelining.schedules import PipelineScheduleSingle

        device = next(self.parameters()).device
        stages = [
            PipelineStage(
                part,
                number,
                self.count,
                device,
                input_args=None if number == 0 else passed,
                group=self.mesh["pp"].get_group(),
            )
            for number, part in zip(self.numbers, self.parts, strict=True)
        ]
        single = issubclass(self.kind, PipelineScheduleSingle)
        try:
            made = self.kind(stages[0] if single else stages, microbatches, loss_fn=loss)
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"{self.kind.__name__}: {line(error)}. --batch is divided into n_microbatches, as "
                "many as there are samples if not said."
            ) from None
        return made


def stage_of(model: Any, layers: range, *, first: bool, last: bool) -> nn.Module:
    """Return a model of the same class with some layers, which are those of the whole model.

    Its forward takes what the stage before returns; the last returns logits. A head that is tied
    to the embedding is a copy of its own, as in transformers.
    """
    base = model.base_model
    kept = [*base.layers[layers.start : layers.stop]]
    kept += [base.embed_tokens] if first else []
    kept += [base.norm, model.get_output_embeddings()] if last else []
    memo: dict[int, Any] = dict.fromkeys(map(id, base.layers))
    memo |= {id(base.embed_tokens): None, id(model.get_output_embeddings()): None}
    memo |= {id(one): one for one in kept}
    stage = copy.deepcopy(model, memo)
    inner, config = stage.base_model, stage.config
    inner.layers = nn.ModuleList(base.layers[layers.start : layers.stop])
    if not last:
        inner.norm = nn.Identity()
    config.num_hidden_layers, config.tie_word_embeddings = len(layers), False
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[layers.start : layers.stop]
    stage.all_tied_weights_keys = {}
    stage.forward = types.MethodType(_forward(first=first, last=last), stage)
    return stage  # type: ignore[no-any-return]


def _forward(*, first: bool, last: bool) -> Callable[..., torch.Tensor]:
    def forward(stage: Any, passed: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        given = {"input_ids" if first else "inputs_embeds": passed}
        hidden = stage.base_model(**given, use_cache=False, **kwargs)[0]
        passed_on: torch.Tensor = stage.get_output_embeddings()(hidden) if last else hidden
        return passed_on

    return forward
