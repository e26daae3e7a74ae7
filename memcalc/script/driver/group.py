"""One process of several over the stand-in driver: NCCL's own group, whose others are made up.

PyTorch's code for NCCL runs over a library that sends nothing. What ranks would tell each other
through a store is there already, and so nobody waits. This file needs PyTorch alone.
"""

from __future__ import annotations

import importlib
import os
import time
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import device_mesh, distributed_c10d

PAUSE = 0.25
"""Seconds after which NCCL's watchdog has let go of tensors of collectives that are done: it looks
every 100 ms (ProcessGroupNCCL.cpp, 2.13), and steps over a driver that does nothing are shorter."""


_Store: Any = vars(dist)["Store"]


class Lonely(_Store):  # type: ignore[misc]
    """A store that never waits: what other ranks would have written is there."""

    _alive: list[Lonely] = []  # noqa: RUF012
    """C++ holds a store without its Python half, which must not go before it."""

    def __init__(self) -> None:
        super().__init__()
        self._held: dict[str, bytes] = {}
        self._alive.append(self)

    def set(self, key: str, value: Any) -> None:
        """Write a value."""
        self._held[key] = value.encode() if isinstance(value, str) else bytes(value)

    def get(self, key: str) -> bytes:
        """What was written, or what another rank might have: NCCL's unique id."""
        return self._held.setdefault(key, b"\7" * 128)

    def add(self, key: str, amount: int) -> int:
        """Count up."""
        total = int(self._held.get(key, b"0")) + amount
        self._held[key] = str(total).encode()
        return total

    def check(self, keys: list[str]) -> bool:
        """Whether all were written here."""
        return all(key in self._held for key in keys)

    def wait(self, keys: list[str], timeout: Any = None) -> None:
        """Nobody waits."""

    def delete_key(self, key: str) -> bool:
        """Forget a value."""
        return self._held.pop(key, None) is not None

    def set_timeout(self, timeout: Any) -> None:
        """Nobody waits."""

    def num_keys(self) -> int:
        """Of values that were written."""
        return len(self._held)

    def clone(self) -> Lonely:
        """The same store."""
        return self


def install() -> None:
    """Let the script join its group alone, where its environment says that there are others."""
    os.environ.setdefault("TORCH_NCCL_ENABLE_MONITORING", "0")
    # The group of the host, where scripts ask for one.
    importlib.import_module("torch.testing._internal.distributed.fake_pg")
    join, group = distributed_c10d.init_process_group, distributed_c10d.new_group

    def joined(backend: Any = None, *args: Any, **kwargs: Any) -> None:
        rank, world = kwargs.get("rank", -1), kwargs.get("world_size", -1)
        join(
            _without_gloo(backend) or "cpu:fake,cuda:nccl",
            store=Lonely(),
            rank=rank if rank >= 0 else int(os.environ.get("RANK", "0")),
            world_size=world if world > 0 else int(os.environ.get("WORLD_SIZE", "1")),
        )

    def grouped(*args: Any, **kwargs: Any) -> Any:
        return group(*args, **{**kwargs, "backend": _without_gloo(kwargs.get("backend"))})

    def arrived(*args: Any, **kwargs: Any) -> None:
        """The barrier of the host's group: the others are there."""

    for name, function in (
        ("init_process_group", joined),
        ("new_group", grouped),
        ("monitored_barrier", arrived),
    ):
        for owner in (distributed_c10d, dist, device_mesh, dist.ProcessGroup):
            if hasattr(owner, name):
                setattr(owner, name, function)


def _without_gloo(backend: Any) -> str | None:
    """The host's part talks over sockets, to nobody here."""
    return None if backend is None else str(backend).lower().replace("gloo", "fake")


def settle() -> None:
    """Wait until collectives that are done hold no tensors any more."""
    if dist.is_initialized():
        torch.cuda.synchronize()
        time.sleep(PAUSE)
