"""One process among several: the environment it finds, and a group whose others are made up."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec
import torch.distributed as dist
from torch.distributed import device_mesh, distributed_c10d

from memcalc.script.patches import Patches
from memcalc.script.recorder import ScriptRecorder
from memcalc.trace import torch_private, wrappers


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """Which one it is."""

    rank: int
    world: int
    environment: dict[str, str]
    """What its launcher set."""

    @property
    def said(self) -> str:
        """In words."""
        return (
            f"this is rank {self.rank} of {self.world}; the others are made up: nothing is sent, "
            "and what they would send is taken as arrived"
        )


def install(
    opened: contextlib.ExitStack, patches: Patches, recorder: ScriptRecorder, process: Process
) -> None:
    """Let the script be this process.

    Args:
        opened: ends with the session.
        patches: the session's.
        recorder: the session's.
        process: what to be.
    """
    for name, value in process.environment.items():
        patches.environment(name, value)
    wrappers.prepare()
    opened.enter_context(wrappers.seen_by(recorder))
    opened.callback(_leave)

    def join(original: Any, *args: Any, **kwargs: Any) -> None:
        original(
            "cpu:fake,cuda:fake",
            store=torch_private.fake_store(),
            rank=process.rank,
            world_size=process.world,
        )

    def group(original: Any, *args: Any, **kwargs: Any) -> Any:
        kwargs.pop("backend", None)
        kwargs.pop("pg_options", None)
        return original(*args[:2], **kwargs)

    for name, around in (("init_process_group", join), ("new_group", group)):
        patches.wrap(distributed_c10d, name, around)
        for module in (dist, device_mesh):
            if hasattr(module, name):
                patches.set(module, name, getattr(distributed_c10d, name))
    for module in (dist, distributed_c10d):
        patches.set(module, "is_nccl_available", lambda: True)


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
