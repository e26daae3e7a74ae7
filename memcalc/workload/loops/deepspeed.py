"""A script around DeepSpeed's engine, as in its own tutorials.

``deepspeed.initialize`` takes the model from the host in fp32, casts it, moves it and takes the
optimizer over; the engine then scales the loss, reduces, clips, updates and clears. Batches are
on the device already. Read in DeepSpeed 0.19.8.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memcalc.workload.loops import Loop

if TYPE_CHECKING:
    from memcalc.workload.job import Job


def run(job: Job, steps: int) -> None:
    """Train a job for this many optimizer steps by DeepSpeed's engine."""
    from memcalc.workload.job import Script

    engine = job.kept.get("engine")
    if engine is None:
        engine = job.kept["engine"] = _make_engine(job)
    script = Script(job, engine)
    for _ in range(steps * job.plan.grad_accum):
        script.forward()
        engine.backward(script.loss)
        # It counts micro-batches by this, and updates with the last of a step alone.
        engine.step()


def _make_engine(job: Job) -> Any:
    import deepspeed

    from memcalc.workload import library_settings

    engine, *_ = deepspeed.initialize(
        model=job.model, optimizer=job.optimizer, config=library_settings.engine(job)
    )
    return engine


LOOP = Loop(
    name="deepspeed",
    title="DeepSpeed engine",
    summary="a script around DeepSpeed's engine",
    run=run,
    fixed=(("set_to_none", True),),
)
