"""A training loop around the bare optimizer, as in PyTorch's and transformers' examples."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from memcalc.workload.loops import Loop

if TYPE_CHECKING:
    from memcalc.workload.job import Job


def run(job: Job, steps: int) -> None:
    """Train a job for this many optimizer steps by a plain PyTorch loop, then evaluate."""
    import torch

    from memcalc.workload.job import Script, forward_context, scaler_class

    plan, model, norm = job.plan, job.model, job.max_grad_norm
    if plan.compile is not None:
        # It is compiled when it is first called.
        model = torch.compile(model, mode=plan.compile)  # type: ignore[assignment]
    script = Script(job, model, functools.partial(forward_context, plan, job.device))
    scaler_of = scaler_class()
    device = () if scaler_of is torch.cuda.amp.GradScaler else (job.device,)
    # A scaler that is not enabled passes losses and steps on as they are.
    scaler = scaler_of(*device, enabled=job.precision.scaled)
    job.resume()
    for _ in range(steps):
        for micro in range(plan.grad_accum):
            with job.sync_gradients(micro == plan.grad_accum - 1):
                script.forward()
                if plan.grad_accum > 1:
                    script.loss = script.loss / plan.grad_accum
                scaler.scale(script.loss).backward()
        if norm is not None:
            if scaler.is_enabled():
                scaler.unscale_(job.optimizer)
            job.clip(norm)
        scaler.step(job.optimizer)
        scaler.update()
        job.optimizer.zero_grad(set_to_none=plan.set_to_none)
    if job.eval_batches:
        script.evaluate()


LOOP = Loop(
    name="plain",
    title="",
    summary="the bare optimizer in a training loop",
    run=run,
)
