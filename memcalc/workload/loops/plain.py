"""A loop of one's own around the bare optimizer, as in PyTorch's and transformers' examples."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcalc.workload.loops import Loop

if TYPE_CHECKING:
    from memcalc.workload.job import Job


def run(job: Job, steps: int) -> None:
    """Train for some optimizer steps, then evaluate."""
    import torch

    from memcalc.workload.job import Script, forward_context

    plan, model, norm = job.plan, job.model, job.max_grad_norm
    if plan.compile is not None:
        # It is compiled when it is first called.
        model = torch.compile(model, mode=plan.compile)  # type: ignore[assignment]
    script = Script(job, model, forward_context(plan, job.device))
    scaler = job.precision.scaler(job.device)
    job.resume()
    for _ in range(steps):
        for micro in range(plan.grad_accum):
            with job.quiet(micro == plan.grad_accum - 1):
                script.forward()
                if plan.grad_accum > 1:
                    script.loss = script.loss / plan.grad_accum
                (script.loss if scaler is None else scaler.scale(script.loss)).backward()
        if norm is not None:
            if scaler is not None:
                scaler.unscale_(job.optimizer)
            job.clip(norm)
        if scaler is not None:
            scaler.step(job.optimizer)
            scaler.update()
        else:
            job.optimizer.step()
        job.optimizer.zero_grad(set_to_none=plan.set_to_none)
    if job.eval_batches:
        script.evaluate()


LOOP = Loop(
    name="plain",
    title="",
    summary="the bare optimizer in a loop of one's own",
    run=run,
)
