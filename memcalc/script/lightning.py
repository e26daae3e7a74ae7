"""Lightning starts one process per GPU: the first runs here.

Source: fabric/strategies/launchers/subprocess_script.py and its like in pytorch/ (2.6).
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from memcalc.engine.patches import Patches

_FABRIC = ("lightning.fabric", "lightning_fabric")
_TRAINER = ("lightning.pytorch", "pytorch_lightning")
_LAUNCHER = "strategies.launchers.subprocess_script"


class _Process:
    """Stands for one that was not started, and has ended well."""

    pid = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """As ``subprocess.Popen``."""

    def poll(self) -> int:
        """It has ended."""
        return 0

    wait = poll

    def send_signal(self, signal: int) -> None:
        """Nobody hears it."""


class _Subprocess:
    """The module of that name, as far as the launcher uses it."""

    Popen = _Process


def install(patches: Patches, gpus: int, started: Callable[[int, str], None]) -> None:
    """Act when Lightning is imported.

    Args:
        patches: what is changed.
        gpus: that the user named.
        started: told how many processes there would be, and of whom, before the first runs.
    """

    def counts(module: ModuleType) -> None:
        patches.set(module, "num_cuda_devices", lambda: gpus)

    def launches(module: ModuleType) -> None:
        def call(original: Any, launcher: Any) -> None:
            original(launcher)
            started(launcher.num_processes, "processes that Lightning starts")

        patches.set(module, "subprocess", _Subprocess)
        patches.set(module, "_launch_process_observer", lambda processes: None)
        patches.wrap(module._SubprocessScriptLauncher, "_call_children_scripts", call)

    for package in _FABRIC:
        patches.when_imported(f"{package}.accelerators.cuda", counts)
    for package in (*_FABRIC, *_TRAINER):
        patches.when_imported(f"{package}.{_LAUNCHER}", launches)
