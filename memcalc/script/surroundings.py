"""The environment of a user's program: its files, and processes that it starts."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from memcalc.engine import decisions, source_lines
from memcalc.engine.patches import Patches
from memcalc.engine.scripts.session import Session
from memcalc.script import large_weights, lightning, protection
from memcalc.script.packages import accelerate, deepspeed, diffusers, torchvision, transformers
from memcalc.script.records import Request
from memcalc.script.subprocesses import Subprocesses


@contextlib.contextmanager
def program(request: Request, session: Session) -> Iterator[Subprocesses]:
    """Keep the user's files as they are, and run the first of processes that it starts here."""
    patches, others = session.patches, Subprocesses()
    patches.environment("MEMCALC_SIMULATED", "1")
    others.install(patches)

    def started(count: int, of: str) -> None:
        session.say(f"{source_lines.named(f'of {count} {of}')} the first runs")
        if count > 1:
            _count_gpus(patches, count)
            session.be_one_of_many()

    _spawn_here(patches, lambda count: started(count, "spawned processes"))
    if request.launched:
        _count_gpus(patches, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    elif request.gpus > 1:
        lightning.install(patches, request.gpus, started)
    decisions.install(patches, session.values, session.say)
    if not request.weights:
        large_weights.install(patches, session.say)
    protection.install(patches, session.say)
    accelerate.install(patches)
    deepspeed.install(patches, session)
    torchvision.install(patches, session.values, session.say)
    if not request.weights:
        transformers.install(patches, session.say)
        diffusers.install(patches, session.say)
    yield others


class _Ended:
    """Stands for processes that have all ended well."""

    processes: tuple[Any, ...] = ()

    def join(self, *args: Any, **kwargs: Any) -> bool:
        """They have."""
        return True

    def pids(self) -> list[int]:
        """None are left."""
        return []


def _spawn_here(patches: Patches, started: Callable[[int], None]) -> None:
    """Of the processes of ``torch.multiprocessing.spawn`` the first runs here.

    ``started`` is told how many there would be, before it runs.
    """

    def start(
        original: Any,
        fn: Callable[..., Any],
        args: Any = (),
        nprocs: int = 1,
        join: bool = True,
        *rest: Any,
        **more: Any,
    ) -> _Ended | None:
        started(nprocs)
        fn(0, *args)
        return None if join else _Ended()

    module = sys.modules["torch.multiprocessing.spawn"]
    for name in ("start_processes", "spawn"):
        patches.wrap(module, name, start, (torch.multiprocessing,))


def _count_gpus(patches: Patches, count: int) -> None:
    """The machine has a GPU for each of its processes at least; this one has the first."""
    if count <= torch.cuda.device_count():
        return
    first_gpu = torch.cuda.get_device_properties(0)
    for owner, name, value in (
        (torch.cuda, "device_count", count),
        (torch.accelerator, "device_count", count),
        (torch.cuda, "get_device_properties", first_gpu),
    ):
        patches.set(owner, name, lambda *_, value=value, **__: value)

    def states() -> list[torch.Tensor]:
        return [torch.cuda.get_rng_state(0) for _ in range(count)]

    for module in (torch.cuda, torch.cuda.random):
        patches.set(module, "get_rng_state_all", states)
