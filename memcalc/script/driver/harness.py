"""Runs a program over the stand-in driver and writes down what it took; needs PyTorch alone.

Usage: harness.py RESULT STEPS [-m] PROGRAM ARGUMENTS, by the Python that has the CUDA build.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import traceback
from pathlib import Path

import torch
from torch.optim import optimizer as optimizers

RUNGS = ("requested", "allocated", "reserved")


class EnoughSteps(BaseException):
    """As many optimizer steps were made as were asked for."""


class Peaks:
    """The highest levels of the allocator, also where the program resets them."""

    def __init__(self, steps: int) -> None:
        self.peaks = dict.fromkeys(RUNGS, 0)
        self.steps = 0
        self._wanted = steps
        self._made: dict[int, int] = {}
        self._reset = torch._C._cuda_resetPeakMemoryStats
        torch._C._cuda_resetPeakMemoryStats = self._noted_reset
        optimizers.register_optimizer_step_pre_hook(self._before)
        optimizers.register_optimizer_step_post_hook(self._after)

    def note(self) -> None:
        """Look at the peaks as they are now."""
        stats = torch.cuda.memory_stats()
        for rung in RUNGS:
            self.peaks[rung] = max(self.peaks[rung], stats.get(f"{rung}_bytes.all.peak", 0))

    def _noted_reset(self, device: int) -> None:
        self.note()
        self._reset(device)

    def _before(self, optimizer: object, args: object, kwargs: object) -> None:
        if self._wanted and self._made.get(id(optimizer), 0) >= self._wanted:
            raise EnoughSteps

    def _after(self, optimizer: object, args: object, kwargs: object) -> None:
        self._made[id(optimizer)] = self._made.get(id(optimizer), 0) + 1
        self.steps = max(self.steps, self._made[id(optimizer)])


def main(result: str, steps: str, *program: str) -> None:
    """Run the program and write what it took."""
    torch.backends.cudnn.enabled = False  # it cannot run here
    peaks, code, stopped = Peaks(int(steps)), 0, False
    os.environ["MEMCALC_SIMULATED"] = "1"
    try:
        if program[0] == "-m":
            sys.argv = list(program[1:])
            sys.path.insert(0, os.getcwd())
            runpy.run_module(program[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = list(program)
            sys.path[0] = str(Path(program[0]).resolve().parent)
            runpy.run_path(program[0], run_name="__main__")
    except EnoughSteps:
        stopped = True
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    peaks.note()
    found = {"code": code, "stopped": stopped, "steps": peaks.steps, "torch": torch.__version__}
    Path(result).write_text(json.dumps({**found, "peaks": peaks.peaks}))
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads of PyTorch's would wait for a GPU that never answers.
    os._exit(code)


if __name__ == "__main__":
    main(*sys.argv[1:])
