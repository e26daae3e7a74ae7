"""Runs one process as one rank of many: NCCL's process group over a stub that sends nothing.

What ranks would tell each other through a store is there already, so nobody waits. What a wrapper
allocates on streams of its own is communication; its buckets and gathered weights only its own
functions tell apart. Read in PyTorch 2.2 to 2.14.
"""

from __future__ import annotations

import functools
import importlib
import os
from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist
from msgspec.structs import replace
from torch.nn.parallel import DistributedDataParallel

from memcalc.engine.notes import Notebook
from memcalc.engine.packages import deepspeed, dtensor, pipelining
from memcalc.engine.patches import Patches
from memcalc.records.plan import Plan
from memcalc.records.trace import Component, Trace, changes
from memcalc.workload import layouts
from memcalc.workload.job import Program

_Store: Any = vars(dist)["Store"]


class SingleRankStore(_Store):  # type: ignore[misc]
    """A store that never waits: what other ranks would have written is there."""

    _alive: list[SingleRankStore] = []  # noqa: RUF012
    """Keep this object alive: C++ holds a store without its Python half."""

    def __init__(self) -> None:
        super().__init__()
        self._held: dict[str, bytes] = {}
        self._alive.append(self)

    def set(self, key: str, value: Any) -> None:
        """Write a value."""
        self._held[key] = value.encode() if isinstance(value, str) else bytes(value)

    def get(self, key: str) -> bytes:
        """Return what was written, or what another rank might have written: NCCL's unique id."""
        return self._held.setdefault(key, b"\7" * 128)

    def add(self, key: str, amount: int) -> int:
        """Add to a counter, and return it."""
        total = int(self._held.get(key, b"0")) + amount
        self._held[key] = str(total).encode()
        return total

    def check(self, keys: list[str]) -> bool:
        """Return whether all were written here."""
        return all(key in self._held for key in keys)

    def wait(self, keys: list[str], timeout: Any = None) -> None:
        """Return at once."""

    def delete_key(self, key: str) -> bool:
        """Forget a value."""
        return self._held.pop(key, None) is not None

    def set_timeout(self, timeout: Any) -> None:
        """Return at once."""

    def num_keys(self) -> int:
        """Return the number of values that were written."""
        return len(self._held)

    def clone(self) -> SingleRankStore:
        """Return the same store."""
        return self


def join(rank: int, world: int, backend: str = "cpu:fake,cuda:nccl") -> None:
    """Enter a group of so many processes, of which this is the only one."""
    os.environ.update(
        TORCH_NCCL_ENABLE_MONITORING="0",
        TORCH_NCCL_BLOCKING_WAIT="1",
        RANK=str(rank),
        WORLD_SIZE=str(world),
        LOCAL_RANK="0",
        LOCAL_WORLD_SIZE="1",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT="29500",
    )
    # The group of the host's memory, where a layout asks for one.
    importlib.import_module("torch.testing._internal.distributed.fake_pg")
    dist.init_process_group(
        backend,
        store=SingleRankStore(),
        rank=rank,
        world_size=world,
    )


def asked(program: Program) -> tuple[int, ...]:
    """Return the ranks to run: the one that the plan names, else the first of each stage.

    Without stages the last as well, where it may hold more.

    Raises:
        UsageError: there is no such rank.
    """
    plan, spread, layout = program.plan, layouts.spread(program.plan), layouts.of(program.plan)
    if plan.rank not in (None, "all"):
        return (layouts.chosen_rank(plan.rank, layouts.spread(plan).world),)
    if spread.stages > 1:
        return tuple(range(0, spread.world, spread.world // spread.stages))
    even = layout.even is None or layout.even(program.model, spread)
    return (0,) if even else (0, spread.world - 1)


def largest(traces: dict[int, Trace], world: int) -> Trace:
    """Return the prediction of the rank that needs most, which names it."""
    needed = {
        rank: max(accumulate(changes(trace.events, [one.bytes for one in trace.storages])))
        for rank, trace in traces.items()
    }
    rank = max(needed, key=lambda rank: needed[rank])
    others = [
        f"rank {other} needs {needed[rank] - needed[other]:,} bytes less"
        for other in needed
        if other != rank
    ]
    said = "; ".join([f"this is rank {rank} of {world}", *others])
    return replace(traces[rank], assumptions=(said, *traces[rank].assumptions))


def follow(patches: Patches, book: Notebook, plan: Plan) -> None:
    """Label the memory that the wrapper of a plan takes."""
    layout = layouts.of(plan)
    if layout.name == layouts.SINGLE:
        return
    follow_wrappers(patches, book)
    if plan.target == "cpu":
        patches.wrap(DistributedDataParallel, "__init__", _averaged_alone)
    if layout.loop == "pipeline":
        pipelining.install(patches, alone=True)
    if layout.package == "deepspeed":
        deepspeed.run_alone()


def follow_wrappers(patches: Patches, book: Notebook) -> None:
    """Label the memory that wrappers take, and plan DTensors that are alike once."""
    # DDP makes its buckets with itself, and again before the second forward.
    for name in ("__init__", "_pre_forward"):
        patches.wrap(DistributedDataParallel, name, book.makes(Component.COMMUNICATION))
    patches.wrap(torch.UntypedStorage, "resize_", functools.partial(_gathered, book))
    dtensor.plan_alike_once(patches)
    deepspeed.label(patches, book)


def _averaged_alone(original: Any, model: Any, *args: Any, **kwargs: Any) -> None:
    """Have DDP take its buckets as reduced: the fake group of the CPU returns nothing."""
    original(model, *args, **kwargs)

    def reduced(state, bucket):  # type: ignore[no-untyped-def]  # DDP refuses annotations as text.
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    model.register_comm_hook(None, reduced)


def _gathered(book: Notebook, original: Any, storage: Any, size: int) -> Any:
    """Label whole parameters: FSDP takes and frees their memory by resizing storages."""
    result = original(storage, size)
    if size and storage.device.type == "cuda":
        book.name_at(Component.UNSHARDED, [storage.data_ptr()])
    return result
