"""The stages of a language model on one rank of a pipeline."""

import copy
import types
from typing import Any

import torch
from torch import nn

from memcalc.errors import UsageError


class Pipeline(nn.Module):
    """The pipeline stages on one rank, with the schedule's class and the device mesh."""

    def __init__(self, parts: dict[int, nn.Module], count: int, kind: Any, mesh: Any) -> None:
        """Take parts by the numbers of their stages, how many stages there are, and a schedule."""
        super().__init__()
        self.parts = nn.ModuleList(parts.values())
        self.numbers, self.count, self.kind, self.mesh = tuple(parts), count, kind, mesh


def find_layers(model: Any) -> tuple[str, nn.ModuleList]:
    """Return the name of a language model's list of layers in its base model, and the list.

    Raises:
        UsageError: the base model is not one embedding, one list of layers, and what follows them.
    """
    children = dict(getattr(model, "base_model", model).named_children())
    lists = {name: one for name, one in children.items() if isinstance(one, nn.ModuleList)}
    embeddings = [one for one in children.values() if isinstance(one, nn.Embedding)]
    if len(lists) != 1 or len(embeddings) != 1:
        raise UsageError(
            f"{type(model).__name__} is not built of one embedding, one list of layers and a norm, "
            "which pipeline stages are made of: choose --parallel fsdp2."
        )
    return next(iter(lists.items()))


def make_stage(model: Any, layers: range, *, first: bool, last: bool) -> nn.Module:
    """Return a pipeline stage: a copy of the model with some of its layers, which are shared.

    The first stage has what stands before the layers, the last has what follows them. Its forward
    takes what the stage before returns; the last returns logits. A head that is tied to the
    embedding is another copy, as in transformers.
    """
    base, head = model.base_model, model.get_output_embeddings()
    listed, whole = find_layers(model)
    children = dict(base.named_children())
    names = [name for name, one in children.items() if next(one.parameters(), None) is not None]
    dropouts = [name for name, one in children.items() if isinstance(one, nn.Dropout)]
    at = names.index(listed)
    dropped = [*([] if first else (*names[:at], *dropouts)), *([] if last else names[at + 1 :])]
    own = [*whole[layers.start : layers.stop], *(children[name] for name in names)]
    # What is copied to None is left out; layers and embeddings are the whole model's own.
    memo: dict[int, Any] = {id(one): one for one in (*own, head)}
    memo |= {id(one): None for number, one in enumerate(whole) if number not in layers}
    for one in (children[name] for name in dropped):
        memo[id(one)] = None if isinstance(one, nn.Embedding) else nn.Identity()
    del memo[id(whole)]
    if not last:
        memo[id(head)] = None
    stage = copy.deepcopy(model, memo)
    config = stage.config
    setattr(stage.base_model, listed, nn.ModuleList(own[: len(layers)]))
    config.num_hidden_layers, config.tie_word_embeddings = len(layers), False
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[layers.start : layers.stop]
    stage.all_tied_weights_keys = {}

    def forward(stage: Any, passed: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        given = {"input_ids" if first else "inputs_embeds": passed}
        hidden: torch.Tensor = stage.base_model(**given, use_cache=False, **kwargs)[0]
        return stage.get_output_embeddings()(hidden) if last else hidden

    stage.forward = types.MethodType(forward, stage)
    return stage  # type: ignore[no-any-return]
