"""Protects the user's checkpoints, folders and trackers during a run."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

from memcalc.engine import source_lines
from memcalc.engine.patches import Patches
from memcalc.script import saving
from memcalc.script.packages import saved_models

STAY = "files that were there before stay as they were"


KEEP_TRACKERS = "MEMCALC_TRACKERS"
"""Variable of the environment that leaves trackers on."""
_OFF = {"WANDB_MODE": "disabled", "COMET_MODE": "disabled", "NEPTUNE_MODE": "debug"}
"""How trackers are told to keep still, by their own documentation."""


class _NoWriter:
    """Takes what TensorBoard's event file would be told."""

    def __init__(self, log_dir: Any = "", *args: Any, **kwargs: Any) -> None:
        self._folder = str(log_dir)

    def get_logdir(self) -> str:
        """Where nothing is written."""
        return self._folder

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **kwargs: None


def _turn_trackers_off(patches: Patches, say: Callable[[str], None]) -> None:
    """Track nothing, unless ``MEMCALC_TRACKERS`` is set.

    Args:
        patches: what is changed.
        say: told that they are off, where they would be used.
    """
    if os.environ.get(KEEP_TRACKERS):
        return
    for name, value in _OFF.items():
        patches.environment(name, value)

    def tensorboard(module: ModuleType) -> None:
        patches.set(module, "FileWriter", _NoWriter)
        say("trackers are off: MEMCALC_TRACKERS=1 leaves them on")

    patches.when_imported("torch.utils.tensorboard.writer", tensorboard)


def install(patches: Patches, say: Callable[[str], None]) -> None:
    """Write nothing that outlives the run.

    Args:
        patches: what is changed.
        say: told what was not done.
    """
    files = saving.install(patches, say)
    files.overlay.covers = lambda: say(source_lines.named(STAY))
    _turn_trackers_off(patches, say)
    saved_models.install(patches, say, files.overlay)
