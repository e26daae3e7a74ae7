"""The environment of a user's program: its files, trackers, GPUs and packages."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any

import torch

from memcalc.engine import decisions, source_lines
from memcalc.engine.patches import Patches
from memcalc.engine.scripts.session import Session
from memcalc.script import large_weights, saving, started_programs
from memcalc.script.packages import accelerate, deepspeed, diffusers, saved_models, transformers
from memcalc.script.records import Request


@contextlib.contextmanager
def program(request: Request, session: Session) -> Iterator[Iterable[str]]:
    """Keep the user's files as they are, and run the first of processes that it starts here.

    Gives the other Python programs that it starts.
    """
    patches, say = session.patches, session.say
    patches.environment("MEMCALC_SIMULATED", "1")
    others = started_programs.python_commands(patches)

    def started(of: str) -> Callable[[int], None]:
        def tell(count: int) -> None:
            say(f"{source_lines.named(f'of {count} {of}')} the first runs")
            if count > 1:
                _count_gpus(patches, count)
                session.be_one_of_many()

        return tell

    started_programs.spawn_here(patches, started("spawned processes"))
    if request.launched:
        _count_gpus(patches, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    elif request.gpus > 1:
        told = started("processes that Lightning starts")
        started_programs.follow_lightning(patches, request.gpus, told)
    decisions.install(patches, session.values, say)
    if not request.weights:
        large_weights.install(patches, say)
    files = saving.install(patches, say)
    files.overlay.covers = lambda: say(source_lines.named(_STAY))
    _turn_trackers_off(patches, say)
    saved_models.install(patches, say, files.overlay)
    accelerate.install(patches)
    deepspeed.install(patches, session)
    if not request.weights:
        transformers.install(patches, say)
        diffusers.install(patches, say)
    yield others


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


_STAY = "files that were there before stay as they were"
_KEEP_TRACKERS = "MEMCALC_TRACKERS"
"""Variable of the environment that leaves trackers on."""
_OFF = {"WANDB_MODE": "disabled", "COMET_MODE": "disabled", "NEPTUNE_MODE": "debug"}
"""How trackers are told to keep still, by their own documentation."""


class _NoWriter:
    """Takes what TensorBoard's event file would be told."""

    def __init__(self, log_dir: Any = "", *args: Any, **kwargs: Any) -> None:
        self._folder = str(log_dir)

    def get_logdir(self) -> str:
        return self._folder

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **kwargs: None


def _turn_trackers_off(patches: Patches, say: Callable[[str], None]) -> None:
    """Track nothing, unless ``MEMCALC_TRACKERS`` is set; ``say`` is told so where they are used."""
    if os.environ.get(_KEEP_TRACKERS):
        return
    for name, value in _OFF.items():
        patches.environment(name, value)

    def tensorboard(module: ModuleType) -> None:
        patches.set(module, "FileWriter", _NoWriter)
        say("trackers are off: MEMCALC_TRACKERS=1 leaves them on")

    patches.when_imported("torch.utils.tensorboard.writer", tensorboard)
