"""The environment of a user's program: its files, trackers, GPUs, packages and processes.

If several processes train together, one runs in the script's own: the first if none is named.
Programs that it starts by subprocess see no simulated GPU, and are named.
"""

import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import msgspec
import torch

from memcalc.engine import source_lines
from memcalc.engine.follow import mail
from memcalc.engine.follow.session import Session
from memcalc.engine.patches import Patches
from memcalc.engine.values import library_checks
from memcalc.script import large_weights, saving
from memcalc.script.child_deaths import ChildDeaths
from memcalc.script.command import find_commands
from memcalc.script.packages import (
    accelerate,
    deepspeed,
    diffusers,
    saved_models,
    torchvision,
    transformers,
    vllm,
)
from memcalc.script.records import FOUND, Found, Request


def program(request: Request, session: Session) -> Iterable[str]:
    """Patch what a user's program does outside the GPU: files, processes, trackers, packages.

    Returns:
        The other Python programs that it starts; they are added as it does.
    """
    patches, say = session.patches, session.say
    patches.environment("MEMCALC_SIMULATED", "1")
    others = python_commands(patches)
    ChildDeaths().install(patches)

    def make_start_handler(of: str, *numbers: str) -> Callable[..., None]:
        def tell(count: int, **variables: str) -> None:
            if request.scouts:
                found = Found(world=count, variables=variables, numbers=numbers)
                Path(os.environ[mail.FOLDER], FOUND).write_bytes(msgspec.json.encode(found))
                os._exit(0)
            if request.rank is None:
                say(f"the first of {count} {of} runs", source_lines.find_line())
            if count > 1 and request.rank is None:
                _report_gpus(patches, count)
                session.be_one_of_many()

        return tell

    run_spawned(patches, make_start_handler("spawned processes"), int(request.rank or 0))
    if request.launch is not None:
        _report_gpus(patches, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    elif (request.world or 1) > 1:
        _report_gpus(patches, request.world or 1)
    elif request.gpus > 1:
        told = make_start_handler("processes that Lightning starts", "LOCAL_RANK")
        follow_lightning(patches, request.gpus, told)
    library_checks.install(patches, session.values)
    if not request.weights:
        large_weights.install(patches)
    saving.install(patches)
    session.follow_checkpoints()
    _turn_trackers_off(patches)
    saved_models.install(patches)
    accelerate.install(patches)
    deepspeed.install(session)
    torchvision.install(patches, session.values)
    if not request.weights:
        transformers.install(patches)
        diffusers.install(patches)
    if request.serving:
        vllm.install(session, Path(request.serving))
    return others


def _report_gpus(patches: Patches, count: int) -> None:
    """Patch torch.cuda to report ``count`` GPUs, of which this process uses the first."""
    if count <= torch.cuda.device_count():
        return
    first_gpu = torch.cuda.get_device_properties(0)
    for owner, name, value in (
        (torch.cuda, "device_count", count),
        (torch.accelerator, "device_count", count),
        (torch.cuda, "get_device_properties", first_gpu),
    ):
        patches.set(owner, name, lambda *_, value=value, **__: value)
    patches.set(torch.cuda, "default_generators", torch.cuda.default_generators[:1] * count)


_KEEP_TRACKERS = "MEMCALC_TRACKERS"
"""Variable of the environment that leaves trackers on."""
_OFF = {"WANDB_MODE": "disabled", "COMET_MODE": "disabled", "NEPTUNE_MODE": "debug"}
_OFF |= {"DO_NOT_TRACK": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
"""How trackers, and what reports on its users, are told to keep still, by their documentation."""


class _NoWriter:
    """A writer of TensorBoard's events that writes nothing."""

    def __init__(self, log_dir: Any = "", *args: Any, **kwargs: Any) -> None:
        self._folder = str(log_dir)

    def get_logdir(self) -> str:
        return self._folder

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **kwargs: None


def _turn_trackers_off(patches: Patches) -> None:
    """Disable experiment trackers such as W&B, unless ``MEMCALC_TRACKERS`` is set."""
    if os.environ.get(_KEEP_TRACKERS):
        return
    for name, value in _OFF.items():
        patches.environment(name, value)

    def disable_tensorboard(module: ModuleType) -> None:
        patches.set(module, "FileWriter", _NoWriter)
        patches.say("trackers are off: MEMCALC_TRACKERS=1 leaves them on")

    patches.when_imported("torch.utils.tensorboard.writer", disable_tensorboard)


_FABRIC = ("lightning.fabric", "lightning_fabric")
_TRAINER = ("lightning.pytorch", "pytorch_lightning")
_LAUNCHER = "strategies.launchers.subprocess_script"


class _Ended:
    """Processes that were not started, and have all ended well."""

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


def run_spawned(patches: Patches, started: Callable[[int], None], rank: int) -> None:
    """Patch torch.multiprocessing.spawn to run one process here; ``started`` gets their number."""

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
        fn(rank, *args)
        return None if join else _Ended()

    module = sys.modules["torch.multiprocessing.spawn"]
    for name in ("start_processes", "spawn"):
        patches.wrap(module, name, start, (torch.multiprocessing,))


def follow_lightning(patches: Patches, gpus: int, started: Callable[..., None]) -> None:
    """Patch Lightning to see this number of GPUs, and to start no further processes.

    ``started`` gets their number before the first runs.
    Source: fabric/strategies/launchers/subprocess_script.py and its like in pytorch/ (2.6).
    """

    def patch_launcher(module: ModuleType) -> None:
        def call(original: Any, launcher: Any) -> None:
            original(launcher)
            names = ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "WORLD_SIZE")
            variables = {name: os.environ[name] for name in names if name in os.environ}
            started(launcher.num_processes, **variables)

        patches.set(module, "subprocess", SimpleNamespace(Popen=_Ended))
        patches.set(module, "_launch_process_observer", lambda processes: None)
        patches.wrap(module._SubprocessScriptLauncher, "_call_children_scripts", call)

    for package in _FABRIC:
        accelerators = f"{package}.accelerators.cuda"
        patches.wrap_later(accelerators, "num_cuda_devices", lambda *_, **__: gpus)
    for package in (*_FABRIC, *_TRAINER):
        patches.when_imported(f"{package}.{_LAUNCHER}", patch_launcher)


def python_commands(patches: Patches) -> dict[str, None]:
    """Return the Python commands that subprocess starts; the dict fills as they start."""
    found: dict[str, None] = {}

    def note_commands(args: Any) -> None:
        if isinstance(args, list | tuple):
            words = [os.fsdecode(one) for one in args if isinstance(one, str | bytes | os.PathLike)]
            args = shlex.join(words)
        for typed in find_commands(os.fsdecode(args)) if isinstance(args, str | bytes) else ():
            # This Python by its short name.
            named = typed.replace(sys.executable, "python")
            if " -c " not in named:
                found[named] = None

    def popen(original: Any, process: Any, args: Any, *others: Any, **kwargs: Any) -> Any:
        note_commands(args)
        return original(process, args, *others, **kwargs)

    def system(original: Any, command: Any) -> Any:
        note_commands(command)
        return original(command)

    patches.wrap(subprocess.Popen, "__init__", popen)
    patches.wrap(os, "system", system)
    return found
