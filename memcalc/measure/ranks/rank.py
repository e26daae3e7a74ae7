"""Joins the process group as one rank, then trains like a run on one device.

A request has the fields of any run, and also its rank, the world size and the file of the process
group's store. The answer of a rank that fails because others are gone is ``{"deserted": reason}``.
"""

import os
from datetime import timedelta
from typing import Any

import torch

from memcalc.children.child import Speaker
from memcalc.errors import NO_GPU, MeasureError
from memcalc.measure.runs import run

warm = run.warm


def answer(request: dict[str, Any], speaker: Speaker) -> dict[str, Any]:
    """Measure a plan as one rank; the entry point of a child process."""
    try:
        _join(request)
        return run.answer({**request, "index": request["rank"]}, speaker)
    except Exception as error:
        if _comes_from_other_rank(error):
            return {"deserted": " ".join(str(error).split())[:200]}
        raise


def _join(request: dict[str, Any]) -> None:
    """Set the environment of torchrun and join the process group."""
    rank, count = request["rank"], request["world"]
    seen = torch.cuda.device_count() if request["device"] == "cuda" else count
    if seen == 0:
        raise MeasureError(NO_GPU)
    if seen < count:
        raise MeasureError(
            f"The plan is for {count} GPUs, and PyTorch sees {seen} here: type --devices {seen}."
        )
    # Libraries read these variables of torchrun; no process listens at the port.
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29500")
    for name, value in (("RANK", rank), ("WORLD_SIZE", count)):
        os.environ[name] = os.environ[f"LOCAL_{name}"] = str(value)
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
    arguments = dict(request["plan"]["parallel_args"])
    backend = "gloo" if request["device"] == "cpu" else "nccl"
    if backend == "nccl" and arguments.get("offload") == "cpu":
        backend = "cpu:gloo,cuda:nccl"
    torch.distributed.init_process_group(
        backend,
        init_method=f"file://{request['store']}",
        rank=rank,
        world_size=count,
        timeout=timedelta(seconds=request["timeout"]),
    )


def _comes_from_other_rank(error: BaseException) -> bool:
    """Return True if an error comes from the process group, and so from another rank.

    Gloo raises plain RuntimeErrors that name its own source (gloo/transport/tcp/pair.cc). Failures
    of a model's own code carry the error itself as their cause.
    """
    if error.__cause__ is not None:
        return _comes_from_other_rank(error.__cause__)
    if isinstance(error, torch.distributed.DistError):
        return True
    return isinstance(error, RuntimeError) and "gloo/" in str(error)
