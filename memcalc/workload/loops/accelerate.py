"""A script around ``accelerate.Accelerator``, as in accelerate's and transformers' examples.

accelerate's own code wraps the model's forward in autocast and upcasts what it returns to fp32,
scales and divides losses, and decides by ``accumulate`` which micro-batch updates. The loop around
it comes from transformers' ``run_glue_no_trainer.py``. Batches are on the device already, where a
prepared data loader would copy them. Read in accelerate 1.15.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcalc.workload.loops import Loop

if TYPE_CHECKING:
    from accelerate import Accelerator

    from memcalc.workload.job import Job


def run(job: Job, steps: int) -> None:
    """Train a job for this many optimizer steps by an accelerate loop, then evaluate."""
    from memcalc.workload import library_settings
    from memcalc.workload.job import Script, restore_attributes

    plan, norm = job.plan, job.max_grad_norm
    with library_settings.fresh_state(), restore_attributes(job.model):
        accelerator = _make_accelerator(job)
        check = job.check_wrapped()
        model, optimizer = accelerator.prepare(job.model, job.optimizer)
        check(model)
        script = Script(job, model)
        job.resume()
        for _ in range(steps * plan.grad_accum):
            with accelerator.accumulate(model):
                script.forward()
                accelerator.backward(script.loss)
                if accelerator.sync_gradients and norm is not None:
                    accelerator.clip_grad_norm_(model.parameters(), norm)
                optimizer.step()
                optimizer.zero_grad(set_to_none=plan.set_to_none)
        if job.eval_batches:
            script.evaluate()


def _make_accelerator(job: Job) -> Accelerator:
    """Make the Accelerator for a job, with its FSDP or DeepSpeed plugin."""
    from accelerate import Accelerator, utils

    from memcalc.workload import library_settings

    sharding, engine = library_settings.sharding(job), library_settings.engine(job)
    return Accelerator(
        mixed_precision=library_settings.mixed_precision(job),
        gradient_accumulation_steps=job.plan.grad_accum,
        cpu=job.device == "cpu",
        fsdp_plugin=utils.FullyShardedDataParallelPlugin(**sharding) if sharding else None,
        deepspeed_plugin=utils.DeepSpeedPlugin(hf_ds_config=engine) if engine else None,
        dynamo_plugin=utils.TorchDynamoPlugin(backend="inductor", mode=job.plan.compile)
        if job.plan.compile
        else None,
        kwargs_handlers=[utils.DistributedDataParallelKwargs(**job.options)]
        if job.layout.name == "ddp"
        else None,
    )


LOOP = Loop(
    name="accelerate",
    title="accelerate loop",
    summary="a script around accelerate's Accelerator",
    run=run,
)
