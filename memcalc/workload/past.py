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


def release(plan: Plan, model_type: str | None) -> Release:
    """What the plan's transformers does otherwise for a model type; nothing where that runs."""
    asked, runs = plan.transformers, installed("transformers") or ""
    if asked is not None and f"{runs}.".startswith(f"{asked}."):
        return Release(notes=(f"transformers {runs} is the one that runs: the code is its own",))
    return releases.of(asked, model_type)


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
