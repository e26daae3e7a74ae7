"""DeepSpeed's ZeRO: what ``deepspeed.initialize`` is told. Read in DeepSpeed 0.19.8."""

from __future__ import annotations

from typing import Any

import torch

from memcalc.records.names import ZERO_STAGES
from memcalc.workload.job import Job

_OWN = ("offload", "offload_param", "communication_data_type", "grad_accum_dtype")
"""Arguments that stand elsewhere in its settings than among those of ZeRO."""


def config(job: Job) -> dict[str, Any]:
    """The settings, as they stand in a file of DeepSpeed.

    The optimizer is the caller's own, of whatever class, also where its state is on the host.
    """
    stage = ZERO_STAGES[job.layout.name]
    said = dict(job.options)
    found: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": job.plan.batch,
        "gradient_accumulation_steps": job.plan.grad_accum,
        "gradient_clipping": job.max_grad_norm or 0.0,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": {"stage": stage, **_zero(said, job.model)},
        "steps_per_print": 1 << 30,
    }
    half = _half(job)
    if half is not None:
        found[half] = {"enabled": True}
    if "communication_data_type" in said:
        found["communication_data_type"] = said["communication_data_type"]
    if "grad_accum_dtype" in said:
        found["data_types"] = {"grad_accum_dtype": said["grad_accum_dtype"]}
    return found


def _half(job: Job) -> str | None:
    """``bf16`` or ``fp16``, where weights are computed with in that."""
    dtype = job.precision.autocast or job.precision.weights
    return {torch.bfloat16: "bf16", torch.float16: "fp16"}.get(dtype)


def _zero(said: dict[str, Any], model: torch.nn.Module) -> dict[str, Any]:
    found = {
        name: _filled(name, model) if value == "auto" else value
        for name, value in said.items()
        if name not in _OWN
    }
    if said.get("offload") == "cpu":
        found["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    if said.get("offload_param") == "cpu":
        found["offload_param"] = {"device": "cpu", "pin_memory": True}
    return {name: value for name, value in found.items() if value is not None}


def _filled(name: str, model: torch.nn.Module) -> int | None:
    """What transformers and accelerate write for ``auto``; ``None``: DeepSpeed's own default.

    Source: transformers 5.23, ``integrations/deepspeed.py``, ``trainer_config_finalize``;
    accelerate 1.15, ``accelerator.py``, ``_prepare_deepspeed``.
    """
    config: Any = getattr(model, "config", None)
    sizes = getattr(config, "hidden_sizes", None) or [getattr(config, "hidden_size", None)]
    text = getattr(config, "text_config", None)
    sizes = sizes if sizes[0] is not None else [getattr(text, "hidden_size", None)]
    if sizes[0] is None:
        return None
    width = max(sizes)
    made = {
        "reduce_bucket_size": width * width,
        "stage3_prefetch_bucket_size": int(0.9 * width * width),
        "stage3_param_persistence_threshold": 10 * width,
    }
    return made.get(name)
