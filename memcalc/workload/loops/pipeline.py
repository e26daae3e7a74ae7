"""A loop around ``schedule.step`` of torch.distributed.pipelining, as in torchtitan.

Forward and backward of micro-batches alternate as the schedule has it. Each rank makes the batch.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, cast

from memcalc.workload.loops import Loop

if TYPE_CHECKING:
    from memcalc.workload.job import Job


def run(job: Job, steps: int) -> None:
    """Train for some optimizer steps."""
    from memcalc.workload.job import forward_context

    schedule, outputs = None, None
    context, pipeline = forward_context(job.plan, job.device), cast(Any, job.model)
    is_last = pipeline.count - 1 in pipeline.numbers
    for _ in range(steps):
        for _ in range(job.plan.grad_accum):
            batch = job.batch()
            with contextlib.ExitStack() as stack:
                given, target = _divided(job, batch, stack)
                tokens = given.pop("input_ids")
                if schedule is None:
                    schedule = _schedule(job, tokens)
                stack.enter_context(context())
                # A script's names: its losses live until the next step begins.
                losses: list[Any] = []
                outputs = schedule.step(
                    *([tokens] if 0 in pipeline.numbers else []),
                    target=target if is_last else None,
                    losses=losses if is_last else None,
                    return_outputs=job.keep_outputs,
                    **given,
                )
        if job.max_grad_norm is not None:
            job.clip(job.max_grad_norm)
        job.optimizer.step()
        job.optimizer.zero_grad(set_to_none=job.plan.set_to_none)
    del outputs


def _divided(job: Job, batch: Any, stack: contextlib.ExitStack) -> tuple[dict[str, Any], Any]:
    """Return what goes into the stages and the target, this rank's tokens of them."""
    from memcalc.workload.layouts import cp

    mesh, labels = cast(Any, job.model).mesh, ("labels", "shift_labels")
    if "cp" in mesh.mesh_dim_names:
        batch = stack.enter_context(cp.divided(mesh["cp"], batch))
    given = {name: one for name, one in batch.items() if name not in labels}
    return given, batch.get("shift_labels", batch["labels"])


def _schedule(job: Job, tokens: Any) -> Any:
    """Make the schedule."""
    import torch

    from memcalc.workload.blocks import dtype_of

    pipeline: Any = job.model
    part, options = pipeline.parts[-1], job.options
    # DistributedDataParallel is around it.
    model = getattr(part, "module", part)
    microbatches = options.get("n_microbatches", job.plan.batch)
    # Stages ask those before them for this, which are not run here.
    dtype = dtype_of(options.get("output_dtype", options.get("param_dtype")))
    passed = torch.empty(
        (tokens.shape[0] // microbatches, tokens.shape[1], model.config.hidden_size),
        dtype=dtype or job.precision.weights,
        device="meta",
        requires_grad=True,
    )
    split = "cp" in pipeline.mesh.mesh_dim_names

    def loss(logits: Any, labels: Any) -> Any:
        shifted = {"labels": None, "shift_labels": labels} if split else {"labels": labels}
        return model.loss_function(logits=logits, vocab_size=model.config.vocab_size, **shifted)

    return pipeline.schedule(passed, microbatches, loss)


LOOP = Loop(
    name="pipeline",
    title="",
    summary="schedules of torch.distributed.pipelining",
    run=run,
    keeps_outputs=False,
)
