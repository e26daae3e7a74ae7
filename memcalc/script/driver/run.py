"""Runs a program by PyTorch's own CUDA code, over a driver that does nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
from msgspec.structs import replace

from memcalc.errors import EstimateError
from memcalc.estimation.question import Asked, asked
from memcalc.records.plan import Plan
from memcalc.script.card import card
from memcalc.script.command import launched
from memcalc.script.driver import build
from memcalc.script.launchers import Launch
from memcalc.script.visible import usable

HARNESS = Path(__file__).with_name("harness.py")
NOT_SEEN = (
    "cuDNN is off: it cannot run over the stand-in driver",
    "workspaces of cuFFT, cuSOLVER and cuSPARSE are taken as none",
)
KNOWN = (
    "values read from the GPU are worked out from the whole numbers and small tensors of real ones "
    "that the program put there, with zeros in place of all others"
)
UNKNOWN = "values read from the GPU are zeros, and so is what the program saves of it"


class Peaks(msgspec.Struct, frozen=True, kw_only=True):
    """The highest levels of PyTorch's allocator, in bytes."""

    requested: int
    allocated: int
    reserved: int


class DriverRun(msgspec.Struct, frozen=True, kw_only=True):
    """What a program took of the GPU over the stand-in driver."""

    code: int
    """Its exit code."""
    stopped: bool
    """It was stopped after as many optimizer steps as were asked for."""
    steps: int
    torch: str
    peaks: Peaks
    """Of the GPU on which most is reserved."""
    gpus: tuple[Peaks, ...] = ()
    """Of each in their order, where the program has several to itself."""
    assumptions: tuple[str, ...] = NOT_SEEN
    said: tuple[str, ...] | None = None
    """What was taken to be so of values; ``None``: all were zeros."""


def run(plan: Plan, python: str = sys.executable) -> DriverRun:
    """Run the program of a plan; what it prints goes to standard error.

    Args:
        plan: its command, and the GPU.
        python: of the environment with PyTorch's CUDA build.

    Raises:
        UsageError: the command cannot be understood.
        EstimateError: there is no CUDA build or no compiler, or the program died.
    """
    program, launch = launched(plan)
    among = launch.environment(0) if launch is not None else {}
    question = asked(plan)
    folder = build.libraries(build.installed(python))
    named = [program.path] if program.path else ["-m", program.module]
    with tempfile.TemporaryDirectory() as scratch:
        result = Path(scratch, "result.json")
        command = [python, str(HARNESS), str(result), str(plan.steps or 0)]
        done = subprocess.run(
            [*command, *named, *program.arguments],
            env={
                **os.environ,
                **dict(program.environment),
                **_settings(question, launch),
                **_preloaded(folder),
                **among,
            },
            stdout=sys.stderr.fileno(),
            check=False,
        )
        if not result.exists():
            raise EstimateError(
                f"The program ended over the stand-in driver with exit code {done.returncode}, "
                "and left no figures."
            )
        try:
            found = msgspec.json.decode(result.read_bytes(), type=DriverRun)
        except ValueError as error:
            raise EstimateError(
                f"The program's figures over the stand-in driver cannot be read: {error}."
            ) from None
    said = (UNKNOWN,) if found.said is None else (KNOWN, *found.said)
    return replace(found, assumptions=(*NOT_SEEN, *said), said=None)


def _preloaded(folder: Path) -> dict[str, str]:
    """Before all others: PyTorch's own libraries say where they look for NVIDIA's."""
    files = ":".join(str(file) for file in sorted(folder.glob("*.so*")))
    others = os.environ.get("LD_LIBRARY_PATH")
    return {"LD_PRELOAD": files, "LD_LIBRARY_PATH": f"{folder}:{others}" if others else str(folder)}


def _settings(question: Asked, launch: Launch | None) -> dict[str, str]:
    """The GPU as the stand-in driver is told of it."""
    gpu, target = question.gpu, question.target
    told = card(gpu)
    found = {
        "CAPABILITY": 10 * target.capability[0] + target.capability[1],
        "PROCESSORS": target.multiprocessors,
        "THREADS": target.architecture.threads,
        "SHARED": target.architecture.shared_memory,
        "SHARED_OF_BLOCK": target.architecture.shared_memory_of_block,
        "MEMORY": told.total,
        "KEPT": told.kept,
        "OUTSIDE": told.outside,
        "ROOM": told.room,
        "NAME": told.name,
        "DEVICES": usable(question.plan.devices, launch.local if launch is not None else None),
    }
    conf = question.plan.alloc_conf
    return {
        **{f"MEMCALC_DRIVER_{key}": str(value) for key, value in found.items()},
        **({"PYTORCH_ALLOC_CONF": conf} if conf else {}),
    }
