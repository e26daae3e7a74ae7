"""Injects faults into ranks that train together on the CPU, and holds what measuring promises.

After every fault: no traceback, the right exit code, no process left, a result file that can be
read; the run before is in it, the rank that failed is named, and what the others had read is kept.

    python benchmarks/rank_faults.py [--only WORDS] [--output evidence/rank_faults.json]

Faults that the file has already are left out.
"""

import argparse
import json
import os
import pathlib
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

import psutil
from fault_case import Case, judge_output, kill, write_cases

from memcalc.files.results import Run, load

MODEL = '''
import os, signal, sys, time
import torch

RANK = os.environ.get("RANK", "")
FAULTY = os.environ.get("MEMCALC_FAULTY", "1").split()

def after(calls):
    """Whether it is this rank's turn to fail: once it has been here so many times."""
    global _calls
    _calls += 1
    return RANK in FAULTY and _calls > calls
_calls = 0

class Good(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = torch.nn.Embedding(100, 64)
        self.layer = torch.nn.Linear(64, 3)
    def forward(self, ids):
        return self.layer(self.tokens(ids)).pow(2).mean()

class Forward(Good):
    def fail(self):
        raise ValueError("of the model's own")
    def forward(self, ids):
        if after(2):
            self.fail()
        return super().forward(ids)

def kills(number):
    class Killed(Forward):
        def fail(self):
            os.kill(os.getpid(), number)
            time.sleep(60)
    return Killed
Killed, Crashed = kills(signal.SIGKILL), kills(signal.SIGSEGV)
Stopped = kills(signal.SIGSTOP)

class Leaves(Forward):
    def fail(self):
        os._exit(7)

class Exits(Forward):
    def fail(self):
        sys.exit(3)

class Hangs(Forward):
    def fail(self):
        time.sleep(600)

class Stubborn(Good):
    def forward(self, ids):
        if after(2):
            raise ValueError("of the model's own")
        if RANK == "0":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        return super().forward(ids)

class Spawns(Forward):
    def fail(self):
        import subprocess
        subprocess.Popen(["sleep", "997"])
        raise ValueError("of the model's own")

class Short(Forward):
    def fail(self):
        torch.empty(1 << 50)

class ShortOnGpu(Forward):
    def fail(self):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

class Babbles(Forward):
    text = b'{"run": rubbish\\n'
    def fail(self):
        for number in range(3, 64):
            try:
                os.write(number, self.text)
            except OSError:
                pass
        os._exit(0)

class Truncated(Babbles):
    text = b'{"job": 1, "answer": {"measurement": {"plan": '

class InLoad(Good):
    def __init__(self):
        super().__init__()
        if RANK in FAULTY:
            raise ValueError("of the model's own")

class Back(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()
    @staticmethod
    def backward(ctx, grad):
        if after(2):
            raise ValueError("of the model's own")
        return grad

class InBackward(Good):
    def forward(self, ids):
        return Back.apply(super().forward(ids))

class InStep(Good):
    def __init__(self):
        super().__init__()
        from torch.optim.optimizer import register_optimizer_step_pre_hook
        def fail(*_):
            if after(2):
                raise ValueError("of the model's own")
        register_optimizer_step_pre_hook(fail)

class Slow(Good):
    def forward(self, ids):
        time.sleep(0.2)
        return super().forward(ids)
'''
SUITE = """
[defaults]
inputs = ["ids=int64[4,8]"]
target = "cpu"
optim = "sgd"
[[run]]
model = "faulty:Good"
[[run]]
model = "faulty:MIDDLE"
devices = 2
parallel = "LAYOUT"
"""
OWN = "of the model's own"
PATIENCE, SHORT = ["--timeout", "90"], {"options": ["--timeout", "40"]}
"""What a busy machine needs; and where that is waited for."""


class Fault(NamedTuple):
    """What is done, and what must come of it."""

    name: str
    middle: str = "Slow"
    """The model."""
    words: str = ""
    """In what is said of the run; nothing: it is measured."""
    ranks: tuple[int, ...] = ()
    """Of which something must be kept."""
    act: Callable[[Case], None] = lambda case: None
    settings: dict = {}  # noqa: RUF012
    environment: dict = {}  # noqa: RUF012
    codes: tuple[int, ...] = (0,)
    lost: bool = False
    """Nothing can be asked of the file."""
    layout: str = "ddp"


def _signal(which: Callable[[list[int]], list[int]], number: int) -> Callable[[Case], None]:
    def act(case: Case) -> None:
        while not case.runs() and case.started.poll() is None:
            time.sleep(0.05)
        time.sleep(case.random.uniform(0, case.span))
        # On a busy machine they may not have started yet.
        while not (found := which(case.processes())) and case.started.poll() is None:
            time.sleep(0.05)
        kill(found, number)

    return act


def _command(pids: list[int]) -> list[int]:
    return pids[:1]


def _forked(pids: list[int]) -> list[psutil.Process]:
    """The process that starts the runs, and what it has forked."""
    found = []
    for pid in pids:
        with suppress(psutil.Error):
            one = psutil.Process(pid)
            found += [one] if "memcalc.children.fork_server" in one.cmdline() else []
    return found


def _ranks(pids: list[int]) -> list[int]:
    forked = _forked(pids)
    parents = {one.pid for one in forked}
    return [one.pid for one in forked if one.ppid() in parents]


def _starter(pids: list[int]) -> list[int]:
    ranks = _ranks(pids)
    return [one.pid for one in _forked(pids) if ranks and one.pid not in ranks]


def _take_the_folder_away(case: Case) -> None:
    while not case.runs() and case.started.poll() is None:
        time.sleep(0.05)
    shutil.rmtree(case.folder / "results", ignore_errors=True)


FAULTS = [
    Fault("a rank gets SIGKILL", "Killed", "killed", (0, 1)),
    Fault("a rank gets SIGSEGV", "Crashed", "SIGSEGV", (0, 1)),
    Fault("a rank leaves with a code", "Leaves", "exit code 7", (0, 1)),
    Fault("a rank calls sys.exit", "Exits", "sys.exit", (0, 1)),
    Fault("a rank raises while it loads", "InLoad", OWN),
    Fault("a rank raises in forward", "Forward", OWN, (0, 1)),
    Fault("a rank raises in backward", "InBackward", OWN, (0, 1)),
    Fault("a rank raises in the step", "InStep", OWN, (0, 1)),
    Fault("a rank raises, and another ignores SIGTERM", "Stubborn", OWN, (0, 1)),
    Fault("a rank leaves a process behind", "Spawns", OWN, (0, 1)),
    Fault("the first rank raises", "Forward", "Rank 0 of 2", (0, 1),
          environment={"MEMCALC_FAULTY": "0"}),
    Fault("both ranks raise", "Forward", OWN, (0, 1), environment={"MEMCALC_FAULTY": "0 1"}),
    Fault("a rank runs out of memory", "Short", "out of memory", (0, 1)),
    Fault("a rank's GPU is full", "ShortOnGpu", "out of memory", (0, 1)),
    Fault("a rank hangs", "Hangs", "longer than 40 seconds", (0, 1), settings=SHORT),
    Fault("a rank is stopped", "Stopped", "longer than 40 seconds", (0, 1), settings=SHORT),
    Fault("a rank talks rubbish", "Babbles", "unreadable message", (0, 1)),
    Fault("a rank's result is cut off", "Truncated", "Rank 1 of 2", (0, 1)),
    Fault("a rank is killed from outside", words="of 2", act=_signal(
        lambda pids: _ranks(pids)[-1:], signal.SIGKILL), codes=(0,)),
    Fault("what starts the ranks is killed", words="process that starts the runs", act=_signal(
        _starter, signal.SIGKILL)),
    Fault("memcalc is killed", act=_signal(_command, signal.SIGKILL), codes=(-9, 0), lost=True),
    Fault("memcalc is asked to end", act=_signal(_command, signal.SIGTERM), codes=(-15, 0, 143),
          lost=True),
    Fault("Ctrl-C", act=_signal(_command, signal.SIGINT), codes=(130, 0), lost=True),
    Fault("the disk is full from the start", "Good", settings={"file_limit": 16}, codes=(2,),
          lost=True),
    Fault("the disk fills up", "Good", settings={"file_limit": 4000}, codes=(0, 3), lost=True),
    Fault("the results' folder disappears", "Slow", act=_take_the_folder_away, codes=(3, 0),
          lost=True),
    Fault("memcalc is itself under a launcher", "Good", environment={
        "RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "5", "MASTER_ADDR": "192.0.2.1"}),
    Fault("more GPUs than there are", "Good", " here: ", settings={"options": [
        "--device", "cuda"]}, codes=(3,)),
]  # fmt: skip


class Ranks(Case):
    """A command that measures one process, and then two."""

    def start(self) -> None:
        """Start it, with what makes the fault beside it."""
        self.model, self.suite = MODEL, SUITE.replace("LAYOUT", self.layout)
        super().start()


def inject(fault: Fault, seed: int, span: float = 3.0) -> dict:
    """Run one command with one fault; says what broke, if anything."""
    with tempfile.TemporaryDirectory(prefix="memcalc-ranks-") as folder:
        mark = f"{os.getpid()}-{seed}-{fault.name.replace(' ', '-')}"
        settings = {**fault.settings, "options": [*PATIENCE, *fault.settings.get("options", [])]}
        case = Ranks(
            pathlib.Path(folder), random.Random(f"{seed}-{fault.name}"), mark, span,
            middle=fault.middle, environment=fault.environment, layout=fault.layout, **settings,
        )  # fmt: skip
        began = time.monotonic()
        case.start()
        fault.act(case)
        out, err = (stream.decode() for stream in case.started.communicate(timeout=300))
        return {
            "fault": fault.name,
            "seconds": round(time.monotonic() - began, 1),
            "code": case.started.returncode,
            "broken": _judge(fault, case, out + err),
        }


def _judge(fault: Fault, case: Case, said: str) -> list[str]:
    broken = judge_output(said, case.started.returncode, fault.codes) + case.left()
    path = case.folder / case.output
    if fault.lost and not (path.exists() and path.stat().st_size):
        return broken
    try:
        runs = load(path)
    except Exception as error:
        return [*broken, f"the file cannot be read: {error}"]
    return broken if fault.lost else [*broken, *_kept(fault, runs)]


def _kept(fault: Fault, runs: list[Run]) -> list[str]:
    broken = []
    on_gpu = "cuda" in fault.settings.get("options", ())
    # Where there is no GPU the first run says so, and no other is begun.
    if len(runs) != (1 if on_gpu else 2):
        return [f"{len(runs)} runs are in the file"]
    first, second = runs[0], runs[-1]
    if first.measurement is None and not on_gpu:
        broken.append(f"the run before is lost: {first.error}")
    told = f"{second.error} {second.measurement and second.measurement.out_of_memory}"
    if fault.words and fault.words not in told:
        broken.append(f"not said: {told}")
    if not fault.words and second.measurement is None:
        broken.append(f"not measured: {told}")
    for rank in fault.ranks:
        one = second.ranks[rank] if rank < len(second.ranks) else None
        if one is None or (one.measurement is None and not one.reached):
            broken.append(f"nothing of rank {rank} is kept")
    return broken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=pathlib.Path)
    arguments = parser.parse_args()
    results = []
    if arguments.output is not None and arguments.output.exists():
        results = json.loads(arguments.output.read_text())["cases"]
    known = {result["fault"] for result in results}
    for fault in FAULTS:
        if arguments.only in fault.name and fault.name not in known:
            results.append(inject(fault, arguments.seed))
            print(json.dumps(results[-1]), flush=True)
    write_cases(arguments.output, {"seed": arguments.seed}, results)


if __name__ == "__main__":
    main()
