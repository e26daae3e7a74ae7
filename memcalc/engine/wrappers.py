"""Names the buffers of multi-GPU wrappers: buckets and gathered weights.

What a wrapper allocates on streams of its own is communication; here is the rest, which only the
wrapper's own functions tell apart. Read in PyTorch 2.4 to 2.14.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from memcalc.engine.packages import deepspeed, dtensor
from memcalc.engine.patches import Patches
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
    with Patches() as patches:
        # DDP makes its buckets as it is made, and anew before the second forward.
        for name in ("__init__", "_pre_forward"):
            patches.wrap(DistributedDataParallel, name, recorder.makes(Component.COMMUNICATION))
        if plan.target == "cpu":
            patches.wrap(DistributedDataParallel, "__init__", _averaged_alone)
        patches.wrap(torch.UntypedStorage, "resize_", functools.partial(_gathered, recorder))
        # DeepSpeed does as it sets itself up.
        patches.wrap(torch.cuda, "reset_peak_memory_stats", functools.partial(_reset, recorder))
        dtensor.plan_alike_once(patches)
        if layout.package == "deepspeed":
            deepspeed.follow(patches, recorder)
        yield


def _averaged_alone(original: Any, model: Any, *args: Any, **kwargs: Any) -> None:
    """The fake group of the CPU reduces nothing and returns nothing, which DDP refuses."""
    original(model, *args, **kwargs)
    # A lambda: DDP refuses annotations that are text.
    model.register_comm_hook(None, lambda state, bucket: _reduced(bucket))


def _reduced(bucket: Any) -> torch.futures.Future[torch.Tensor]:
    """A bucket is reduced in place."""
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def _reset(recorder: Recorder, original: Any, *args: Any, **kwargs: Any) -> None:
    original(*args, **kwargs)
    if recorder.intervals:
        recorder.intervals[-1].counted = recorder.now()


def _gathered(recorder: Recorder, original: Any, storage: Any, size: int) -> Any:
    """FSDP frees and takes the memory of whole parameters by resizing their storages."""
    result = original(storage, size)
    if size and storage.device.type == "cuda":
        recorder.name_at(Component.UNSHARDED, [storage.data_ptr()])
    return result
