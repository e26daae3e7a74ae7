"""Gives a model what an earlier release of transformers did in its place (``catalog.releases``).

Shapes: B batch, S tokens, V vocabulary.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.nn import functional

from memcalc.catalog import releases
from memcalc.catalog.releases import Loss, Release
from memcalc.records.plan import Plan
from memcalc.version import installed
from memcalc.workload import cache_layers


def release(plan: Plan, model_type: str | None) -> Release:
    """What the plan's transformers does otherwise for a model type; nothing where that runs."""
    asked = plan.transformers
    if asked is not None and releases.runs(asked):
        said = f"transformers {installed('transformers')} is the one that runs: the code is its own"
        return Release(notes=(said,))
    return releases.of(asked, model_type, generates=plan.generate is not None)


def of(model: torch.nn.Module, plan: Plan) -> Release:
    """The same for a model that is built; nothing for one that is not of transformers."""
    config: Any = getattr(model, "config", None)
    model_type = getattr(config, "model_type", None)
    return release(plan, model_type) if model_type else Release()


def give_loss(model: torch.nn.Module, past: Release) -> None:
    """Let a causal language model make its loss as it did, where it asks a function for it."""
    if past.loss in (None, "function") or not hasattr(type(model), "loss_function"):
        return
    made = functools.partial(_shifting_loss, form=past.loss)
    model.loss_function = made  # type: ignore[assignment]


def keep_past(model: torch.nn.Module, then: Release) -> None:
    """Let ``generate`` hold what a pass was given of past tokens until the next pass begins.

    Of tuples, a pass makes all layers' anew, and the dictionary that it was called with holds the
    old ones until the next one is made (transformers 4.35, generation/utils.py, greedy_search).
    """
    if not then.tuples:
        return
    held: list[torch.Tensor] = []

    def hold(_: torch.nn.Module, __: object, options: dict[str, Any]) -> None:
        held.clear()
        past = next(filter(None, map(options.get, cache_layers.NAMES)), None)
        # What is kept of an encoder's outputs stays as it is.
        past = getattr(past, "self_attention_cache", past)
        for layer in getattr(past, "layers", ()):
            held.extend(t for t in (layer.keys, layer.values) if isinstance(t, torch.Tensor))

    model.register_forward_pre_hook(hold, with_kwargs=True)


def _shifting_loss(
    logits: torch.Tensor,
    labels: torch.Tensor,
    vocab_size: int,
    num_items_in_batch: Any = None,
    *,
    form: Loss,
    **_: object,
) -> torch.Tensor:
    """Mean cross-entropy, each token foretelling the next; logits (B, S, V), labels (B, S)."""
    wide = logits if form == "own" else logits.float()
    if form == "own-float":
        # The model's own variable became the wide one, and nothing held the narrow any more.
        logits.data = wide.detach()
    rows = wide[..., :-1, :].contiguous().view(-1, vocab_size)
    wanted = labels[..., 1:].contiguous().view(-1)
    if num_items_in_batch is None:
        return functional.cross_entropy(rows, wanted)
    summed: torch.Tensor = functional.cross_entropy(rows, wanted, reduction="sum")
    return summed.div(num_items_in_batch)
