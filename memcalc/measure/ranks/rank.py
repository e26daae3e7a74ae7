"""A rank: joins the process group, then trains like a run on one device."""

import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from memcalc.children.child import Breadcrumbs, Speaker
from memcalc.errors import NO_GPU, MeasureError

exit_code = [1]
"""Of this process."""


def answer_for(breadcrumbs: Breadcrumbs) -> Callable[[dict[str, Any], Speaker], dict[str, Any]]:
    """A function that answers requests."""
    from memcalc.measure.runs import run

    train = run.answer_for(breadcrumbs)

    def answer(request: dict[str, Any], speaker: Speaker) -> dict[str, Any]:
        try:
            index = _join(request)
            found = train({**request, "index": index}, speaker)
        except Exception as error:
            if _deserted(error):
                raise DesertedError(" ".join(str(error).split())[:200]) from None
            raise
        # Out of memory is a result, and still the others cannot go on without this one.
        exit_code[0] = 0 if found["measurement"]["out_of_memory"] is None else 1
        return found

    return answer


class DesertedError(MeasureError):
    """Another rank is gone, or no rank can be reached."""

    exit_code = 4
    """Seen by the parent alone, which looks for the rank that failed first."""


def _join(request: dict[str, Any]) -> int:
    """Join the process group; return the index of this process's GPU."""
    import torch

    local, count = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    seen = torch.cuda.device_count() if request["device"] == "cuda" else count
    if seen == 0:
        raise MeasureError(NO_GPU)
    if seen < count:
        raise MeasureError(
            f"The plan is for {count} GPUs, and PyTorch sees {seen} here: type --devices {seen}."
        )
    arguments = dict(request["plan"]["parallel_args"])
    backend = "gloo" if request["device"] == "cpu" else "nccl"
    if backend == "nccl" and arguments.get("offload") == "cpu":
        backend = "cpu:gloo,cuda:nccl"
    torch.distributed.init_process_group(backend, timeout=timedelta(seconds=request["timeout"]))
    return local


def _deserted(error: BaseException) -> bool:
    """Whether an error comes from the process group, and so from another rank.

    Gloo raises plain RuntimeErrors that name its own source (gloo/transport/tcp/pair.cc). Failures
    of a model's own code carry the error itself as their cause.
    """
    import torch

    if error.__cause__ is not None:
        return _deserted(error.__cause__)
    if isinstance(error, torch.distributed.DistError):
        return True
    return isinstance(error, RuntimeError) and "gloo/" in str(error)
