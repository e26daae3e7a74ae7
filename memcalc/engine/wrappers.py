"""Names what wrappers over several GPUs take for themselves: buckets, and gathered weights.

What a wrapper allocates on streams of its own is communication; here is the rest, which only the
wrapper's own functions tell apart. Read in PyTorch 2.4 to 2.14.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from memcalc.engine.packages import deepspeed, dtensor
from memcalc.engine.patch import replaced
from memcalc.engine.recorder import Recorder
from memcalc.records.plan import Plan
from memcalc.records.trace import Component
from memcalc.workload import layouts


@contextlib.contextmanager
def followed(recorder: Recorder, plan: Plan) -> Iterator[None]:
    """Have the wrapper of a plan tell the recorder what it makes."""
    layout = layouts.of(plan)
    if layout.name == layouts.SINGLE:
        yield
        return
    with contextlib.ExitStack() as stack:
        # DDP makes its buckets as it is made, and anew before the second forward.
        for name in ("__init__", "_pre_forward"):
            stack.enter_context(
                replaced(DistributedDataParallel, name, functools.partial(_buckets, recorder))
            )
        if plan.target == "cpu":
            stack.enter_context(replaced(DistributedDataParallel, "__init__", _averaged_alone))
        stack.enter_context(
            replaced(torch.UntypedStorage, "resize_", functools.partial(_gathered, recorder))
        )
        # DeepSpeed does as it sets itself up.
        stack.enter_context(
            replaced(torch.cuda, "reset_peak_memory_stats", functools.partial(_reset, recorder))
        )
        stack.enter_context(dtensor.alike_planned_once())
        if layout.package == "deepspeed":
            stack.enter_context(deepspeed.followed(recorder))
        yield


def _buckets(recorder: Recorder, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        since = recorder.now()
        result = function(*args, **kwargs)
        recorder.born_since.append((recorder.now(), Component.COMMUNICATION, since))
        return result

    return run


def _averaged_alone(make: Callable[..., None]) -> Callable[..., None]:
    """The fake group of the CPU reduces nothing and returns nothing, which DDP refuses.

    Buckets are reduced in place: the hook returns them.
    """

    def finished(bucket: Any) -> Any:
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    @functools.wraps(make)
    def run(model: Any, *args: Any, **kwargs: Any) -> None:
        make(model, *args, **kwargs)
        # A lambda: DDP refuses annotations that are text.
        model.register_comm_hook(None, lambda state, bucket: finished(bucket))

    return run


def _reset(recorder: Recorder, reset: Callable[..., None]) -> Callable[..., None]:
    def run(*args: Any, **kwargs: Any) -> None:
        reset(*args, **kwargs)
        if recorder.intervals:
            recorder.intervals[-1].counted = recorder.now()

    return run


def _gathered(recorder: Recorder, resize: Callable[..., Any]) -> Callable[..., Any]:
    """FSDP frees and takes the memory of whole parameters by resizing their storages."""

    def run(storage: Any, size: int) -> Any:
        result = resize(storage, size)
        if size and storage.device.type == "cuda":
            moment = recorder.now()
            recorder.names.append((moment, Component.UNSHARDED, [storage.data_ptr()]))
        return result

    return run
