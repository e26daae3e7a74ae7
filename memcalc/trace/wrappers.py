"""What wrappers over several GPUs do to tensors, as far as a simulated run must know of it.

One process stands for one rank of any number: its process group sends nothing and is told that
everything arrived. What the wrappers allocate is the doing of their own code.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from memcalc.trace import comm_hooks, device
from memcalc.trace.packages import dtensor
from memcalc.trace.recorder import TraceRecorder
from memcalc.trace.subclasses import set_known_data
from memcalc.trace.torch_private.dispatch import without_modes
from memcalc.trace.torch_private.names import replaced
from memcalc.trace.torch_private.ranks import (
    fake_store,
    give_collectives_shapes,
    meshes_of_one_run,
    meshes_wrapped,
    planning_wrapped,
)
from memcalc.trace.torch_private.sharding import (
    buckets_rebuilt_by,
    ddp_asks_no_timer,
    ranks_trusted,
    shards_padded_once,
)
from memcalc.trace.torch_private.tensors import local_part


@contextlib.contextmanager
def process_group(rank: int, world: int) -> Iterator[None]:
    """A group of so many ranks, of which this process is one and the others are made up."""
    give_collectives_shapes()
    backend = "fake" if device.NAME == "cpu" else f"cpu:fake,{device.NAME}:fake"
    dist.init_process_group(backend, store=fake_store(), rank=rank, world_size=world)
    try:
        with meshes_of_one_run():
            yield
    finally:
        dist.destroy_process_group()


@contextlib.contextmanager
def seen_by(recorder: TraceRecorder) -> Iterator[None]:
    """Let the recorder see storages that are resized, and not what DTensor only plans with.

    FSDP frees and takes the memory of unsharded parameters by resizing their storages.
    """
    resize = torch.UntypedStorage.resize_

    def record(tensor: torch.Tensor, stream: Any) -> None:
        # A function, so that it is a method of the tensor it is called on. The CPU has one
        # stream, and nothing waits for it.
        if device.NAME != "cpu":
            recorder.ledger.used_by(tensor, stream.stream_id)

    def resized(storage: Any, size: int) -> Any:
        before = storage.nbytes()
        out = resize(storage, size)
        recorder.ledger.resized(storage, before, size)
        return out

    with contextlib.ExitStack() as stack:
        stack.enter_context(replaced(torch.UntypedStorage, "resize_", resized))
        stack.enter_context(replaced(torch.Tensor, "record_stream", record))
        stack.enter_context(planning_wrapped(_for_real))
        stack.enter_context(dtensor.alike_planned_once())
        stack.enter_context(ranks_trusted(record, set_known_data))
        stack.enter_context(shards_padded_once())
        stack.enter_context(_averaged(recorder))
        if device.NAME == "cpu":
            # Ranks are numbers on the host, and so the simulated device holds none.
            stack.enter_context(meshes_wrapped(_for_real))
            stack.enter_context(buckets_rebuilt_by(_with_numbers(recorder)))
            recorder.in_python[torch.ops.fsdp.chunk_cat.default] = _filled_up
        yield


def _filled_up(
    tensors: list[torch.Tensor], dim: int, num_chunks: int, *, out: torch.Tensor
) -> None:
    """FSDP2's chunks of gradients on the CPU: those that cannot be divided are filled up first.

    All of them live until their chunks are copied. Source: aten/src/ATen/native/TensorShape.cpp,
    ``_chunk_cat_out`` (2.13); on a GPU a kernel does without.
    """
    filled = []
    for tensor in tensors:
        missing = -tensor.shape[dim] % num_chunks
        if missing:
            behind = (0, 0) * (tensor.dim() - 1 - dim)
            filled.append(torch.constant_pad_nd(tensor, (*behind, 0, missing)))


def _with_numbers(recorder: TraceRecorder) -> Callable[..., Any]:
    """DDP reads in C++ in which order gradients came."""

    def wrap(rebuild: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            recorder.numbers_on_host = True
            try:
                return rebuild(*args)
            finally:
                recorder.numbers_on_host = False

        return run

    return wrap


def _for_real(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as if nothing were simulated: what it works with is no part of the program."""

    def run(*args: Any, **kwargs: Any) -> Any:
        with without_modes():
            return function(*args, **kwargs)

    return run


@contextlib.contextmanager
def _averaged(recorder: TraceRecorder) -> Iterator[None]:
    """DDP takes its buckets as they are for what an all-reduce gives.

    The work of the ``fake`` group has no tensor as its result, which DDP's own would take
    (torch/csrc/distributed/c10d/comm.cpp, 2.13).
    """
    wrapper = torch.nn.parallel.DistributedDataParallel
    made, register = wrapper.__init__, wrapper.register_comm_hook

    def make(self: Any, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        ranks = dist.get_world_size(self.process_group)
        register(self, comm_hooks.Exchange(recorder, ranks), comm_hooks.received)

    with (
        replaced(wrapper, "__init__", make),
        replaced(wrapper, "register_comm_hook", comm_hooks.give),
        # It would ask a timer of the device, which a build without CUDA has not.
        ddp_asks_no_timer(),
    ):
        yield


def is_shard(tensor: torch.Tensor) -> bool:
    """This rank holds a part of it."""
    return local_part(tensor) is not tensor


def local(tensor: torch.Tensor) -> torch.Tensor:
    """The part of a tensor that this rank holds."""
    return local_part(tensor)
