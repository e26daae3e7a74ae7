"""Programs that a script starts: of those that train with it the first runs here, in its process.

Those of ``torch.multiprocessing.spawn`` and Lightning are processes of one training; what it starts
by subprocess sees no simulated GPU, and is named.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from memcalc.engine.patches import Patches
from memcalc.script.command import commands

_FABRIC = ("lightning.fabric", "lightning_fabric")
_TRAINER = ("lightning.pytorch", "pytorch_lightning")
_LAUNCHER = "strategies.launchers.subprocess_script"


class _Ended:
    """Stands for processes that were not started, and have all ended well."""

    pid = 0
    processes: tuple[Any, ...] = ()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def poll(self) -> int:
        return 0

    wait = poll

    def join(self, *args: Any, **kwargs: Any) -> bool:
        return True

    def pids(self) -> list[int]:
        return []

    def send_signal(self, signal: int) -> None:
        pass


def spawn_here(patches: Patches, started: Callable[[int], None]) -> None:
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


def follow_lightning(patches: Patches, gpus: int, started: Callable[[int], None]) -> None:
    """Act when Lightning is imported: it starts one process for each of these GPUs.

    ``started`` is told how many there would be, before the first runs.
    Source: fabric/strategies/launchers/subprocess_script.py and its like in pytorch/ (2.6).
    """

    def counts(module: ModuleType) -> None:
        patches.set(module, "num_cuda_devices", lambda: gpus)

    def launches(module: ModuleType) -> None:
        def call(original: Any, launcher: Any) -> None:
            original(launcher)
            started(launcher.num_processes)

        patches.set(module, "subprocess", SimpleNamespace(Popen=_Ended))
        patches.set(module, "_launch_process_observer", lambda processes: None)
        patches.wrap(module._SubprocessScriptLauncher, "_call_children_scripts", call)

    for package in _FABRIC:
        patches.when_imported(f"{package}.accelerators.cuda", counts)
    for package in (*_FABRIC, *_TRAINER):
        patches.when_imported(f"{package}.{_LAUNCHER}", launches)


def python_commands(patches: Patches) -> dict[str, None]:
    """Python programs that are started by subprocess from now on, each once as it is typed."""
    found: dict[str, None] = {}

    def see(args: Any) -> None:
        if isinstance(args, list | tuple):
            words = [os.fsdecode(one) for one in args if isinstance(one, str | bytes | os.PathLike)]
            args = shlex.join(words)
        for typed in commands(os.fsdecode(args)) if isinstance(args, str | bytes) else ():
            # This Python by its short name.
            named = typed.replace(sys.executable, "python")
            if " -c " not in named:
                found[named] = None

    def popen(original: Any, process: Any, args: Any, *others: Any, **kwargs: Any) -> Any:
        see(args)
        return original(process, args, *others, **kwargs)

    def system(original: Any, command: Any) -> Any:
        see(command)
        return original(command)

    patches.wrap(subprocess.Popen, "__init__", popen)
    patches.wrap(os, "system", system)
    return found
