"""Models with the weights they were published with; only safetensors are read, never pickles."""

from __future__ import annotations

import importlib
import os
from pathlib import Path

import torch

from memcalc.catalog import models, tasks
from memcalc.catalog.models import ModelSource
from memcalc.errors import MeasureError
from memcalc.records.plan import Plan
from memcalc.workload.model import build, configure
from memcalc.workload.precision import PRECISIONS


def load(plan: Plan) -> tuple[torch.nn.Module, str]:
    """Build a plan's model on the CPU with its real weights; returns it with its task's name.

    A callable makes its own weights, which are kept.

    Raises:
        MeasureError: there are no safetensors, or they do not fit the model.
    """
    source = models.find(plan.model)
    task = tasks.choose(source, plan.task)
    dtype = PRECISIONS[plan.precision].weights
    if source.factory is not None:
        return build(source, task, dtype=dtype), task.name
    config = configure(source, task)
    if plan.attention == "eager":
        config._attn_implementation = "eager"
    head = getattr(importlib.import_module("transformers"), task.class_name)
    place = _place(source)
    try:
        model = head.from_pretrained(
            place,
            config=config,
            dtype=dtype,
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=bool(os.environ.get("HF_HUB_OFFLINE")),
        )
    except Exception as error:
        # transformers, huggingface_hub and safetensors each have errors of their own.
        reason = " ".join(str(error).split())[:200]
        raise MeasureError(
            f"The weights of {place} cannot be loaded: {reason} "
            "Leave --weights out to measure with random weights: memory is the same."
        ) from None
    return model, task.name


def _place(source: ModelSource) -> str:
    if source.origin != "local":
        return source.name
    path = Path(source.name).expanduser()
    return str(path.parent if path.suffix == ".json" else path)
