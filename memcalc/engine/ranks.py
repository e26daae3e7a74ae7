"""Runs one process as one rank of many: NCCL's process group over a stub that sends nothing.

The store already has the values of other ranks, so this rank never waits. Blocks that a wrapper
allocates on its own streams are communication; buckets and gathered weights are labelled by
patches of the wrapper's functions. Read in PyTorch 2.2 to 2.14.
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
    """A store that never waits: it makes up the values of other ranks."""

    _alive: list[SingleRankStore] = []  # noqa: RUF012
    """All stores, to keep them alive: C++ holds a store without its Python part."""

    def __init__(self) -> None:
        super().__init__()
        self._held: dict[str, bytes] = {}
        self._alive.append(self)

    def set(self, key: str, value: Any) -> None:
        """Store a value."""
        self._held[key] = value.encode() if isinstance(value, str) else bytes(value)

    def get(self, key: str) -> bytes:
        """Return the stored value, or one that another rank might have stored: NCCL's unique ID."""
        return self._held.setdefault(key, b"\7" * 128)

    def add(self, key: str, amount: int) -> int:
        """Add to a counter and return its new value."""
        total = int(self._held.get(key, b"0")) + amount
        self._held[key] = str(total).encode()
        return total

    def check(self, keys: list[str]) -> bool:
        """Return True if all keys were stored here."""
        return all(key in self._held for key in keys)

    def wait(self, keys: list[str], timeout: Any = None) -> None:
        """Do nothing: there are no other ranks."""

    def delete_key(self, key: str) -> bool:
        """Delete a value; return True if it was stored."""
        return self._held.pop(key, None) is not None

    def set_timeout(self, timeout: Any) -> None:
        """Do nothing: this store never waits."""

    def num_keys(self) -> int:
        """Return the number of stored values."""
        return len(self._held)

    def clone(self) -> SingleRankStore:
        """Return this store."""
        return self


def join(rank: int, world: int, backend: str = "cpu:fake,cuda:nccl") -> None:
    """Join a process group of ``world`` ranks, in which only this process runs."""
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
    # The backend for host memory, which some layouts use.
    importlib.import_module("torch.testing._internal.distributed.fake_pg")
    dist.init_process_group(
        backend,
        store=SingleRankStore(),
        rank=rank,
        world_size=world,
    )


def ranks_to_run(program: Program) -> tuple[int, ...]:
    """Return the ranks to run: the one that the plan names, else the first of each stage.

    Without stages the last rank runs too if it may hold more than the first.

    Raises:
        UsageError: the plan names a rank that does not exist.
    """
    plan, spread, layout = program.plan, layouts.spread(program.plan), layouts.of(program.plan)
    if plan.rank not in (None, "all"):
        return (layouts.chosen_rank(plan.rank, spread.world),)
    if spread.stages > 1:
        return tuple(range(0, spread.world, spread.world // spread.stages))
    even = layout.even is None or layout.even(program.model, spread)
    return (0,) if even else (0, spread.world - 1)


def largest(traces: dict[int, Trace], world: int) -> Trace:
    """Return the trace of the rank with the highest peak, with an assumption that names it."""
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
    note = "; ".join([f"this is rank {rank} of {world}", *others])
    return replace(traces[rank], assumptions=(note, *traces[rank].assumptions))


def follow(patches: Patches, book: Notebook, plan: Plan) -> None:
    """Patch the wrapper of a plan's layout, such as DDP, to label the memory that it takes."""
    layout = layouts.of(plan)
    if layout.name == layouts.SINGLE:
        return
    follow_wrappers(patches, book)
    if plan.target == "cpu":
        patches.wrap(DistributedDataParallel, "__init__", _skip_all_reduce)
    if layout.loop == "pipeline":
        pipelining.install(patches, alone=True)
    if layout.package == "deepspeed":
        deepspeed.run_alone()


def follow_wrappers(patches: Patches, book: Notebook) -> None:
    """Label the memory that PyTorch's wrappers take, and plan equal DTensors only once."""
    # DDP makes its buckets in __init__, and again before the second forward.
    for name in ("__init__", "_pre_forward"):
        patches.wrap(DistributedDataParallel, name, book.makes(Component.COMMUNICATION))
    patches.wrap(torch.UntypedStorage, "resize_", functools.partial(_label_full_parameters, book))
    dtensor.plan_alike_once(patches)
    deepspeed.label(patches, book)


def _skip_all_reduce(original: Any, model: Any, *args: Any, **kwargs: Any) -> None:
    """Make DDP use its buckets unreduced: the fake group of the CPU returns nothing."""
    original(model, *args, **kwargs)

    def keep_bucket(state, bucket):  # type: ignore[no-untyped-def]  # DDP refuses annotations as text.
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    model.register_comm_hook(None, keep_bucket)


def _label_full_parameters(book: Notebook, original: Any, storage: Any, size: int) -> Any:
    """Label unsharded parameters: FSDP allocates and frees them by resizing storages."""
    result = original(storage, size)
    if size and storage.device.type == "cuda":
        book.name_at(Component.UNSHARDED, [storage.data_ptr()])
    return result
