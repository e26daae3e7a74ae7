"""The real optimizer of a program, made as its loop makes it."""

from __future__ import annotations

from typing import Any

import torch

from memcalc.registry.build import build
from memcalc.workload import layouts, loops
from memcalc.workload.program import Program


def make(
    program: Program, model: torch.nn.Module, *, only: torch.nn.Parameter | None = None
) -> torch.optim.Optimizer:
    """Make the optimizer over the parameters of a model that train.

    Args:
        program: names the optimizer and the loop.
        model: its parameters are on their device already.
        only: make it over this parameter alone.

    Raises:
        UsageError: its package is not installed, or the class refuses its arguments.
    """
    loop, layout = loops.of(program.plan), layouts.of(program.plan)
    # None is the Trainer's default; some optimizers make lists of temporaries for any.
    decay = float(program.choice.given.get("weight_decay") or 0.0)
    groups: list[Any] | None = None
    if only is None:
        groups = layout.groups(model) if layout.groups else loop.groups(model, decay)
    return build(
        program.choice,
        model,
        groups=groups,
        wide_embeddings=loop.wide_embeddings,
        only=only,
        through=layout.optimizer,
    )
