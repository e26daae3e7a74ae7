"""Runs a program over the stand-in driver, or on a GPU, and writes down what it took.

Usage: harness.py RESULT STEPS [-m] PROGRAM ARGUMENTS, by the Python that has the CUDA build.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util
import json
import os
import runpy
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.optim import optimizer as optimizers

_PR_SET_PDEATHSIG = 1
RUNGS = ("requested", "allocated", "reserved")


class EnoughSteps(BaseException):
    """As many optimizer steps were made as were asked for."""


class Peaks:
    """The highest levels of the allocator, also where the program resets them."""

    def __init__(self, steps: int) -> None:
        self.each = [dict.fromkeys(RUNGS, 0) for _ in range(torch.cuda.device_count())]
        self.steps = 0
        self._wanted = steps
        self._made: dict[int, int] = {}
        self._settle: Callable[[], None] = _settle_own_group
        self._reset = torch._C._cuda_resetPeakMemoryStats
        torch._C._cuda_resetPeakMemoryStats = self._noted_reset
        optimizers.register_optimizer_step_pre_hook(self._before)
        optimizers.register_optimizer_step_post_hook(self._after)
        self._count_replays()

    def among_others(self, group: Any) -> None:
        """The program is one of several processes: before each step its collectives are done."""
        group.install()
        self._settle = group.settle

    def note(self) -> None:
        """Look at the peaks as they are now."""
        for device, peaks in enumerate(self.each):
            stats = torch.cuda.memory_stats(device)
            for rung in RUNGS:
                peaks[rung] = max(peaks[rung], stats.get(f"{rung}_bytes.all.peak", 0))

    @property
    def peaks(self) -> dict[str, int]:
        """Of the GPU on which most is reserved."""
        return max(self.each, key=lambda peaks: peaks["reserved"])

    def _noted_reset(self, device: int) -> None:
        self.note()
        self._reset(device)

    def _count_replays(self) -> None:
        """Optimizer steps that a CUDA graph has captured are made again as it is replayed."""
        graph: Any = torch.cuda.CUDAGraph
        begin, replay = graph.capture_begin, graph.replay
        end = graph.capture_end
        before: dict[int, dict[int, int]] = {}
        captured: dict[int, list[int]] = {}

        def begun(one: Any, *args: Any, **kwargs: Any) -> None:
            begin(one, *args, **kwargs)
            before[id(one)] = dict(self._made)

        def ended(one: Any) -> None:
            end(one)
            were = before.pop(id(one), {})
            captured[id(one)] = [key for key, made in self._made.items() if made != were.get(key)]

        def replayed(one: Any) -> None:
            for key in captured.get(id(one), ()):
                self._begin(key)
            replay(one)
            for key in captured.get(id(one), ()):
                self._end(key)

        graph.capture_begin, graph.capture_end, graph.replay = begun, ended, replayed

    def _before(self, optimizer: object, args: object, kwargs: object) -> None:
        self._settle()
        self._begin(id(optimizer))

    def _after(self, optimizer: object, args: object, kwargs: object) -> None:
        self._end(id(optimizer))

    def _begin(self, optimizer: int) -> None:
        if self._wanted and self._made.get(optimizer, 0) >= self._wanted:
            raise EnoughSteps

    def _end(self, optimizer: int) -> None:
        self._made[optimizer] = self._made.get(optimizer, 0) + 1
        self.steps = max(self.steps, self._made[optimizer])


def _name_cudnn() -> None:
    """The version is PyTorch's own; C++ shall go on without the library, and finds an older one."""
    major, minor, patch = torch._C._cudnn.getCompileVersion()
    given = {"_init": True, "version": 10_000 * major + 100 * minor + patch}
    for name, value in given.items():
        setattr(torch.backends.cudnn, name, lambda value=value: value)


def _settle_own_group() -> None:
    """A program may have joined a group by itself, of itself alone."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        _own("group").settle()


def main(result: str, steps: str, *program: str) -> None:
    """Run the program and write what it took."""
    _end_with_parent()
    if "MEMCALC_DRIVER_CAPABILITY" in os.environ:
        torch.backends.cudnn.enabled = False  # it cannot run over the stand-in driver
        _name_cudnn()
    peaks, code, stopped = Peaks(int(steps)), 0, False
    known = _known(Path(result).parent)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        peaks.among_others(_own("group"))
    if "MEMCALC_DRIVER_CAPABILITY" in os.environ:
        _spawn_here(lambda count: _started(peaks, known, count, "spawned processes"))
        _count_gpus(int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
        gpus = int(os.environ.get("MEMCALC_DRIVER_DEVICES", "1"))
        if known is not None and gpus > 1 and "LOCAL_WORLD_SIZE" not in os.environ:
            known.follow_lightning(gpus, lambda *told: _started(peaks, known, *told))
    os.environ["MEMCALC_SIMULATED"] = "1"
    try:
        with known.following() if known else contextlib.nullcontext():
            _run(program)
    except EnoughSteps:
        stopped = True
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    peaks.note()
    if known is not None:
        known.end()
    said = {} if known is None else {"said": list(known.said)}
    found = {"code": code, "stopped": stopped, "steps": peaks.steps, "torch": torch.__version__}
    each = {"gpus": peaks.each} if len(peaks.each) > 1 else {}
    Path(result).write_text(json.dumps({**found, **said, **each, "peaks": peaks.peaks}))
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads of PyTorch's would wait for a GPU that never answers.
    os._exit(code)


def _count_gpus(count: int) -> None:
    """The machine has a GPU for each of its processes at least; this one has the first."""
    if count > torch.cuda.device_count():
        first = torch.cuda.get_device_properties(0)
        for owner, name, value in (
            (torch.cuda, "device_count", count),
            (torch.accelerator, "device_count", count),
            (torch.cuda, "get_device_properties", first),
        ):
            setattr(owner, name, lambda *_, value=value, **__: value)

        def states() -> list[torch.Tensor]:
            return [torch.cuda.get_rng_state(0) for _ in range(count)]

        for module in (torch.cuda, torch.cuda.random):
            setattr(module, "get_rng_state_all", states)  # noqa: B010


def _started(peaks: Peaks, known: Any, count: int, of: str) -> None:
    """The program starts so many processes: nobody would see what others than the first take."""
    if known is not None:
        known.said[f"of {count} {of} the first runs"] = None
    if count > 1:
        _count_gpus(count)
        peaks.among_others(_own("group"))


def _spawn_here(started: Callable[[int], None]) -> None:
    """Of spawned processes the first runs here."""
    first = _own("first")
    for name in first.NAMES:
        for module in (sys.modules["torch.multiprocessing.spawn"], torch.multiprocessing):
            if hasattr(module, name):
                setattr(module, name, first.instead(started))


def _end_with_parent() -> None:
    """Nobody waits for a program whose asker was killed."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _run(program: tuple[str, ...]) -> None:
    if program[0] == "-m":
        sys.argv = list(program[1:])
        sys.path.insert(0, os.getcwd())
        runpy.run_module(program[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(program)
        sys.path[0] = str(Path(program[0]).resolve().parent)
        runpy.run_path(program[0], run_name="__main__")


def _known(folder: Path) -> Any:
    """What answers for the values that the program put there; ``None``: all are zeros.

    This Python need not have memcalc, or what it is made of.

    Args:
        folder: where what is kept in place of the program's files lies.
    """
    if os.environ.get("MEMCALC_READS") == "zeros":
        return None
    home = str(Path(__file__).resolve().parents[3])
    sys.path.insert(0, home)
    try:
        module = importlib.import_module("memcalc.script.driver.known")
        patches = importlib.import_module("memcalc.script.patches").Patches()
        importlib.import_module("memcalc.children.scratch").use(str(folder / "kept"))
        known = module.Known(patches)
        if "MEMCALC_DRIVER_CAPABILITY" in os.environ:
            importlib.import_module("memcalc.script.driver.card").install(patches, known.say)
        return known
    except Exception:
        _save_nothing()
        return None
    finally:
        sys.path.remove(home)


def _own(name: str) -> Any:
    """A file beside this one that needs PyTorch alone; there may be no memcalc here."""
    path = Path(__file__).with_name(f"{name}.py")
    spec = importlib.util.spec_from_file_location(f"memcalc_driver_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _save_nothing() -> None:
    """Nobody's checkpoint is overwritten with zeros."""
    original = torch.save

    def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        if not isinstance(f, str | os.PathLike):
            original(obj, f, *args, **kwargs)

    torch.save = save


if __name__ == "__main__":
    main(*sys.argv[1:])
