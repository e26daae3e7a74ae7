"""Process groups of a program that runs as one rank: NCCL's own code, without waiting.

Messages of ranks through a store are answered at once.
"""

import importlib
import os
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch.distributed import device_mesh, distributed_c10d
from torch.nn.parallel import DistributedDataParallel

from memcalc.engine.counters import Counters
from memcalc.engine.follow.messages import Messages
from memcalc.engine.follow.objects import Objects
from memcalc.engine.packages import fsdp, nccl, pipelining, zero_redundancy
from memcalc.engine.patches import Patches
from memcalc.engine.ranks import SingleRankStore, follow_wrappers


class Groups:
    """The groups that the program joins."""

    def __init__(self, counters: Counters, join: Callable[[int, int], None]) -> None:
        """Take ``join``, which is called with rank and world before a program joins others."""
        self._counters, self._join = counters, join
        self._installed = False
        self.sizes: set[int] = set()
        """Processes in each group."""
        self.messages = Messages()

    def watch(self, patches: Patches) -> None:
        """Patch ``init_process_group``, by which a process becomes one of several."""
        around = self._init_process_group
        patches.wrap(distributed_c10d, "init_process_group", around, also=(dist, device_mesh))

    def install(self, patches: Patches) -> None:
        """Patch torch.distributed so that this process joins its groups alone."""
        self._installed = True
        os.environ.setdefault("TORCH_NCCL_ENABLE_MONITORING", "0")
        # The group of the host's memory, where programs ask for one.
        importlib.import_module("torch.testing._internal.distributed.fake_pg")
        for name, around in (
            ("new_group", self._new_group),
            ("split_group", self._split_group),
            ("monitored_barrier", _skip_barrier),
        ):
            if hasattr(distributed_c10d, name):
                patches.wrap(distributed_c10d, name, around, also=(dist, device_mesh))
        patches.set(dist.ProcessGroup, "monitored_barrier", lambda *_, **__: None)
        self.messages.install(patches)
        Objects(self.messages).install(patches)
        pipelining.install(patches)
        fsdp.install(patches)
        zero_redundancy.install(patches)
        follow_wrappers(patches, self._counters)
        patches.wrap(DistributedDataParallel, "_pre_forward", self._begin_forward)

    def _init_process_group(
        self,
        original: Any,
        backend: Any = None,
        init_method: Any = None,
        timeout: Any = None,
        world_size: int = -1,
        rank: int = -1,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        world = world_size if world_size > 0 else int(os.environ.get("WORLD_SIZE", "1"))
        own = rank if rank >= 0 else int(os.environ.get("RANK", "0"))
        if world > 1 and not self._installed:
            self._join(own, world)
        if not self._installed:
            original(backend, init_method, timeout, world_size, rank, *args, **kwargs)
            return
        original(
            _without_gloo(backend) or "cpu:fake,cuda:nccl",
            store=SingleRankStore(),
            rank=own,
            world_size=world,
        )
        self.sizes.add(world)
        self.messages.groups.append(tuple(range(world)))

    def _new_group(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        made = original(*args, **{**kwargs, "backend": _without_gloo(kwargs.get("backend"))})
        ranks = args[0] if args else kwargs.get("ranks")
        if ranks is not None:
            self.sizes.add(len(ranks))
            self.messages.groups.append(tuple(ranks))
        return made

    def _split_group(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        ranks = args[1] if len(args) > 1 else kwargs.get("split_ranks")
        self.messages.groups += map(tuple, ranks or ())
        self.sizes |= set(map(len, ranks or ()))
        return original(*args, **kwargs)

    def _begin_forward(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        """Replace DDP's ``_pre_forward``, which frees buckets, after what was sent is free."""
        self.settle()
        return original(*args, **kwargs)

    def settle(self) -> None:
        """Wait until finished collectives hold no tensors."""
        if max(self.sizes, default=1) > 1 and dist.is_initialized():
            nccl.release_sent_tensors()


def _without_gloo(backend: Any) -> str | None:
    """Return a backend's name with gloo replaced by the fake one, which needs no sockets."""
    return None if backend is None else str(backend).lower().replace("gloo", "fake")


def _skip_barrier(original: Any, *args: Any, **kwargs: Any) -> None:
    """Replace ``monitored_barrier``: return at once, because no other rank runs."""
