"""Models with the weights they were published with; only safetensors are read, never pickles."""

from __future__ import annotations

import importlib
from pathlib import Path

import torch

from memcalc.catalog import models
from memcalc.catalog.models import ModelSource
from memcalc.errors import MeasureError
from memcalc.files.offline import is_offline
from memcalc.records.plan import Plan
from memcalc.workload import tasks
from memcalc.workload.model import build, configure, told_attention
from memcalc.workload.precision import PRECISIONS
from memcalc.workload.tasks import Task


def load(plan: Plan) -> tuple[torch.nn.Module, Task]:
    """Build a plan's model on the CPU with its real weights; returns it with its task.

    A callable makes its own weights, which are kept.

    Raises:
        MeasureError: there are no safetensors, or they do not fit the model.
    """
    source = models.find(plan.model)
    head = tasks.choose(source, plan.task)
    dtype = PRECISIONS[plan.precision].weights
    if source.factory is not None:
        return build(source, head, dtype=dtype), head.task
    config = configure(source, head, attention=told_attention(plan))
    cls = getattr(importlib.import_module("transformers"), head.class_name)
    place = _place(source)
    try:
        model = cls.from_pretrained(
            place,
            config=config,
            dtype=dtype,
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=is_offline(),
        )
    except Exception as error:
        # transformers, huggingface_hub and safetensors each have errors of their own.
        reason = " ".join(str(error).split())[:200]
        raise MeasureError(
            f"The weights of {place} cannot be loaded: {reason} "
            "Leave --weights out to measure with random weights: memory is the same."
        ) from None
    return model, head.task


def _place(source: ModelSource) -> str:
    if source.origin != "local":
        return source.tuned or source.name
    path = Path(source.name).expanduser()
    return str(path.parent if path.suffix == ".json" else path)
