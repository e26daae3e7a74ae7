"""transformers' Trainer: ``Trainer.train()`` itself runs.

Its own code decides on ``config.use_cache``, on holding all micro-batches of a step, on the loss by
``num_items_in_batch``, the norm of gradients, and evaluation with its logits side by side. The job
gives it the optimizer, over the groups that its ``create_optimizer`` makes, and the batches.
"""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING, Any

from memcalc.workload.loops import Loop

if TYPE_CHECKING:
    import torch

    from memcalc.workload.job import Job

MAX_GRAD_NORM = 1.0
"""The default of ``TrainingArguments.max_grad_norm``."""
_WRAPPED = "transformer_layer_cls_to_wrap"


def run(job: Job, steps: int) -> None:
    """Train a job for this many optimizer steps by transformers' Trainer, then evaluate."""
    from memcalc.workload import library_settings
    from memcalc.workload.job import restore_attributes
    from memcalc.workload.job_trainer import JobTrainer, without_arrays

    with (
        library_settings.fresh_state(),
        tempfile.TemporaryDirectory(prefix="memcalc-") as folder,
        restore_attributes(job.model),
        without_arrays(job),
    ):
        JobTrainer(job, _make_arguments(job, folder, steps)).train()


def groups(model: torch.nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Return the Trainer's two parameter groups: with weight decay, and without."""
    from transformers import Trainer

    decays = set(Trainer.get_decay_parameter_names(None, model))
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    return [
        {"params": [p for name, p in named if name in decays], "weight_decay": weight_decay},
        {"params": [p for name, p in named if name not in decays], "weight_decay": 0.0},
    ]


def _make_arguments(job: Job, folder: str, steps: int) -> Any:
    from transformers import TrainingArguments

    from memcalc.workload import library_settings

    half = library_settings.mixed_precision(job)
    arguments = TrainingArguments(
        output_dir=folder,
        max_steps=steps,
        gradient_accumulation_steps=job.plan.grad_accum,
        max_grad_norm=job.max_grad_norm or 0.0,
        bf16=half == "bf16",
        fp16=half == "fp16",
        use_cpu=job.device == "cpu",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        log_level="error",
        torch_compile=job.plan.compile is not None,
        torch_compile_mode=job.plan.compile,
        per_device_eval_batch_size=job.plan.batch,
        **_parallel_arguments(job),
    )
    engine_config = getattr(arguments, "hf_deepspeed_config", None)
    if engine_config is not None:
        # It compares the engine's precision with autocast's, and plain bf16 weights have none.
        engine_config.mismatches.clear()
    if job.plan.kv_cache is not None:
        # No argument before transformers 5.
        arguments.use_cache = job.plan.kv_cache
    return arguments


def _parallel_arguments(job: Job) -> dict[str, Any]:
    """Return the TrainingArguments for several GPUs: DDP, DeepSpeed or FSDP."""
    from memcalc.workload import library_settings

    if job.layout.name == "ddp":
        return {f"ddp_{name}": value for name, value in job.options.items()}
    engine = library_settings.engine(job)
    if engine is not None:
        return {"deepspeed": engine, "per_device_train_batch_size": job.plan.batch}
    plugin = library_settings.sharding(job)
    if plugin is None:
        return {}
    named = {"fsdp_version": "version", "transformer_cls_names_to_wrap": _WRAPPED}
    return {"fsdp": True, "fsdp_config": {named.get(k, k): v for k, v in plugin.items()}}


LOOP = Loop(
    name="trainer",
    title="Trainer loop",
    summary="transformers' Trainer",
    run=run,
    keeps_outputs=False,
    fixed=(("keep_outputs", False), ("set_to_none", True)),
    max_grad_norm=MAX_GRAD_NORM,
    wide_embeddings=True,
    groups=groups,
)
