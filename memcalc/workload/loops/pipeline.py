"""A loop around ``schedule.step`` of torch.distributed.pipelining, as in torchtitan.

Forward and backward of micro-batches alternate as the schedule has it. Each rank makes the batch.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, cast

from memcalc.errors import UsageError
from memcalc.imports import line
from memcalc.workload.loops import Loop

if TYPE_CHECKING:
    from memcalc.workload.job import Job


def run(job: Job, steps: int) -> None:
    """Train a job for this many optimizer steps by a pipeline schedule."""
    from memcalc.workload.job import forward_context

    schedule, outputs = None, None
    pipeline = cast(Any, job.model)
    is_last = pipeline.count - 1 in pipeline.numbers
    for _ in range(steps):
        for _ in range(job.plan.grad_accum):
            batch = job.batch()
            with contextlib.ExitStack() as stack:
                given, target = _split_batch(job, batch, stack)
                tokens = given.pop("input_ids")
                if schedule is None:
                    schedule = _make_schedule(job, tokens)
                stack.enter_context(forward_context(job.plan, job.device))
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


def _split_batch(job: Job, batch: Any, stack: contextlib.ExitStack) -> tuple[dict[str, Any], Any]:
    """Return a batch's inputs and its labels, split along tokens under context parallelism."""
    from memcalc.workload.layouts import cp

    mesh, labels = cast(Any, job.model).mesh, ("labels", "shift_labels")
    if "cp" in mesh.mesh_dim_names:
        batch = stack.enter_context(cp.divide_tokens(mesh["cp"], batch))
    given = {name: one for name, one in batch.items() if name not in labels}
    return given, batch.get("shift_labels", batch["labels"])


def _make_schedule(job: Job, tokens: Any) -> Any:
    """Make PyTorch's pipeline schedule over this rank's stages.

    Raises:
        UsageError: PyTorch refuses the schedule.
    """
    import torch
    from torch.distributed.pipelining import PipelineStage
    from torch.distributed.pipelining.schedules import PipelineScheduleSingle

    from memcalc.workload import layouts
    from memcalc.workload.blocks import parse_dtype

    pipeline, options = cast(Any, job.model), job.options
    part = pipeline.parts[-1]
    # DistributedDataParallel is around it.
    model = getattr(part, "module", part)
    microbatches = layouts.microbatches(job.plan)
    # Stages ask those before them for this, which are not run here.
    dtype = parse_dtype(options.get("output_dtype", options.get("param_dtype")))
    passed = torch.empty(
        (tokens.shape[0] // microbatches, tokens.shape[1], model.config.hidden_size),
        dtype=dtype or job.precision.weights,
        device="meta",
        requires_grad=True,
    )
    device, group = next(pipeline.parameters()).device, pipeline.mesh["pp"].get_group()
    stages = [
        PipelineStage(part, at, pipeline.count, device, passed if at else None, group=group)
        for at, part in zip(pipeline.numbers, pipeline.parts, strict=True)
    ]
    is_split = "cp" in pipeline.mesh.mesh_dim_names

    def loss(logits: Any, labels: Any) -> Any:
        given = {"labels": None, "shift_labels": labels} if is_split else {"labels": labels}
        return model.loss_function(logits=logits, vocab_size=model.config.vocab_size, **given)

    single, kind = issubclass(pipeline.kind, PipelineScheduleSingle), pipeline.kind
    try:
        return kind(stages[0] if single else stages, microbatches, loss_fn=loss)
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"{kind.__name__}: {line(error)}. --batch is divided into n_microbatches, which are "
            "as many as there are samples if you do not set them."
        ) from None


LOOP = Loop(
    name="pipeline",
    title="",
    summary="schedules of torch.distributed.pipelining",
    run=run,
    keeps_outputs=False,
)
