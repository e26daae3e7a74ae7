"""Traces many plans in several worker processes, no more than the machine has room for."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path

from memcalc.children.ask import Parent
from memcalc.errors import EstimateError, MemcalcError
from memcalc.estimation.client import trace_all, tracing_parent
from memcalc.records.plan import Plan
from memcalc.records.prediction import Prediction

Answer = Prediction | MemcalcError

WORKER_BYTES = 1 << 30
"""Room that one worker is given: 0.4 GB were seen with PyTorch's CPU build, more with CUDA's."""
_CGROUP = Path("/sys/fs/cgroup")


def trace_parallel(plans: Sequence[Plan], workers: int | None = None) -> Iterator[Answer]:
    """Trace plans in several processes; answers come in the order of the plans.

    Args:
        plans: what to trace; those of one model go to one worker where that keeps all busy.
        workers: at most so many processes; ``None``: what cores and free memory allow.
    """
    most = workers if workers is not None else room()
    shares = split([plan.model for plan in plans], most)
    if len(shares) <= 1:
        yield from trace_all(plans)
        return
    answers: list[Future[Answer]] = [Future() for _ in plans]
    stop = threading.Event()
    with tracing_parent() as parent:
        for share in shares:
            arguments = (plans, share, answers, stop, parent)
            threading.Thread(target=_work, args=arguments, daemon=True).start()
        try:
            for answer in answers:
                yield answer.result()
        finally:
            stop.set()


def _work(
    plans: Sequence[Plan],
    share: Sequence[int],
    answers: Sequence[Future[Answer]],
    stop: threading.Event,
    parent: Parent,
) -> None:
    left = iter(share)
    try:
        for answer in trace_all([plans[index] for index in share], parent):
            answers[next(left)].set_result(answer)
            if stop.is_set():
                return
    except Exception as error:  # Whoever waits for the rest must hear of it.
        for index in left:
            answers[index].set_result(EstimateError(f"The simulated run did not start: {error}."))


def split(models: Sequence[str], workers: int) -> list[list[int]]:
    """Share plans out: evenly, those of one model together as far as that allows.

    A worker takes as long to start as two or three traces, so none starts for a single plan
    unless there are only two.

    Args:
        models: the model of each plan.
        workers: at most so many shares.

    Returns:
        Indices of the plans, one list a worker, none empty.
    """
    count = max(1, min(workers, math.ceil(len(models) / 2) if len(models) > 2 else len(models)))
    first = {model: index for index, model in reversed(list(enumerate(models)))}
    order = sorted(range(len(models)), key=lambda index: (first[models[index]], index))
    size, extra = divmod(len(order), count)
    shares, at = [], 0
    for number in range(count):
        end = at + size + (number < extra)
        shares.append(order[at:end])
        at = end
    return [share for share in shares if share]


def room() -> int:
    """How many workers the machine has cores and free memory for; at least one."""
    cores = len(os.sched_getaffinity(0))
    free = free_memory()
    return max(1, min(cores, free // WORKER_BYTES if free is not None else 1))


def free_memory() -> int | None:
    """Bytes that new processes may take: of the machine, or of the container if that is less."""
    known = [size for size in (_available(), _left_in_container()) if size is not None]
    return min(known) if known else None


def _available() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
        return int(found[0]) * 1024
    except (OSError, ValueError, IndexError):
        return None


def _left_in_container() -> int | None:
    try:
        limit = int((_CGROUP / "memory.max").read_text(encoding="ascii"))
        return limit - int((_CGROUP / "memory.current").read_text(encoding="ascii"))
    except (OSError, ValueError):
        # No limit ("max"), or not version 2 of control groups.
        return None
