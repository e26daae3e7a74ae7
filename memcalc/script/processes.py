"""One process among several: the environment it finds, and a group whose others are made up."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch.distributed import device_mesh, distributed_c10d

from memcalc.script import arrivals, reducers
from memcalc.script.driver import first
from memcalc.script.patches import Patches
from memcalc.script.recorder import ScriptRecorder
from memcalc.trace import wrappers
from memcalc.trace.torch_private.ranks import fake_store, give_collectives_shapes

_DEVICES_OF_BARRIER = 3
"""Positional arguments of ``barrier`` where devices are among them."""


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """Which one it is."""

    rank: int
    world: int
    environment: dict[str, str] = {}
    """What its launcher set."""

    @property
    def local(self) -> int:
        """Processes on its machine, each with a GPU of its own."""
        return int(self.environment.get("LOCAL_WORLD_SIZE", "1"))

    @property
    def said(self) -> str:
        """In words."""
        return (
            f"this is rank {self.rank} of {self.world}; the others are made up: nothing is sent, "
            "and what they would send is taken as arrived"
        )


def install(
    opened: contextlib.ExitStack,
    patches: Patches,
    recorder: ScriptRecorder,
    process: Process | None,
    say: Callable[[str], None],
    started: Callable[[int, str], None],
) -> None:
    """Let the script be this process, or the one that it says it is when it joins a group.

    Args:
        opened: ends with the session.
        patches: the session's.
        recorder: the session's.
        process: what to be; ``None``: nobody launched the script.
        say: told that others are made up.
        started: told how many processes the script starts, and of what, before the first runs.
    """
    for name, value in process.environment.items() if process is not None else ():
        patches.environment(name, value)
    give_collectives_shapes()
    opened.enter_context(wrappers.seen_by(recorder))
    opened.callback(_leave)
    reducers.install(patches)
    start = first.instead(lambda count: started(count, "spawned processes"))
    _spawn_here(patches, start)
    arrivals.install(patches)

    def join(
        original: Any,
        backend: Any = None,
        init_method: Any = None,
        timeout: Any = None,
        world_size: int = -1,
        rank: int = -1,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        itself = process or _as_told(rank, world_size)
        if itself.world > 1:
            say(itself.said)
        original(
            "cpu:fake,cuda:fake",
            store=fake_store(),
            rank=itself.rank,
            world_size=itself.world,
        )

    for name, around in (
        ("init_process_group", join),
        ("new_group", _group),
        ("barrier", _barrier),
        ("monitored_barrier", _arrived),
    ):
        patches.wrap(distributed_c10d, name, around, also=(dist, device_mesh))
    patches.set(dist.ProcessGroup, "monitored_barrier", lambda *_, **__: None)
    for module in (dist, distributed_c10d):
        patches.set(module, "is_nccl_available", lambda: True)


def _group(original: Any, *args: Any, **kwargs: Any) -> Any:
    kwargs.pop("backend", None)
    kwargs.pop("pg_options", None)
    return original(*args[:2], **kwargs)


def _barrier(original: Any, *args: Any, **kwargs: Any) -> Any:
    """A byte names the device, which PyTorch makes where one is told; a number is summed.

    Source: ProcessGroup.hpp and ProcessGroupNCCL.cpp, ``barrier`` (2.13).
    """
    if not dist.is_initialized():
        return original(*args, **kwargs)
    if len(args) < _DEVICES_OF_BARRIER and not isinstance(kwargs.get("device_ids"), list):
        kwargs["device_ids"] = [0]
    summed = torch.empty(1, device="cuda")
    out = original(*args, **kwargs)
    del summed
    return out


def _arrived(original: Any, *args: Any, **kwargs: Any) -> None:
    """The barrier of the host's group: the others are there."""


def _as_told(rank: int, world: int) -> Process:
    """Which process the script says it is: in its call, or by the environment."""
    return Process(
        rank=rank if rank >= 0 else int(os.environ.get("RANK", "0")),
        world=world if world > 0 else int(os.environ.get("WORLD_SIZE", "1")),
    )


def _spawn_here(patches: Patches, start: Callable[..., Any]) -> None:
    """``torch.multiprocessing.spawn`` runs the first of its processes, in this one."""
    module = sys.modules["torch.multiprocessing.spawn"]
    for name in first.NAMES:
        patches.wrap(module, name, lambda _, *a, **kw: start(*a, **kw), (torch.multiprocessing,))


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
