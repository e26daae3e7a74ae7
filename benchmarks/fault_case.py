"""One ``memcalc measure`` command that a fault is injected into."""

import contextlib
import os
import pathlib
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from typing import NoReturn

import psutil
import tables

from memcalc.files.results import load

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODEL = """
import os, time
import torch

class Small(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = torch.nn.Embedding(100, 64)
        self.layer = torch.nn.Linear(64, 3)
    def forward(self, ids):
        return self.layer(self.tokens(ids)).pow(2).mean()

class Slow(Small):
    def forward(self, ids):
        time.sleep(0.15)
        return super().forward(ids)

class Babbles(Small):
    def forward(self, ids):
        for number in range(3, 64):
            try:
                os.write(number, b'{"run": rubbish\\\\n')
            except OSError:
                pass
        os._exit(0)
"""
SUITE = """
[defaults]
inputs = ["ids=int64[4,8]"]
target = "cpu"
[[run]]
model = "faulty:Small"
optim = "sgd"
[[run]]
model = "faulty:MIDDLE"
[[run]]
model = "faulty:Small"
"""
DRIVER_CALLS = (
    "nvmlInitWithFlags",
    "nvmlSystemGetDriverVersion",
    "nvmlDeviceGetCount_v2",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlSystemGetProcessName",
    "nvmlShutdown",
)
DRIVER_ERRORS = (1, 3, 4, 9, 12, 13, 15, 18, 999)


def living(mark: str) -> list[int]:
    """Processes whose environment has this ``MEMCALC_MARK``, in order."""
    found = []
    for one in psutil.process_iter():
        try:
            if one.environ().get("MEMCALC_MARK") == mark and one.status() != psutil.STATUS_ZOMBIE:
                found.append(one.pid)
        except psutil.Error:
            continue
    return sorted(found)


def left(mark: str) -> list[str]:
    """Which of them still live a moment after their command ended; they are killed."""
    deadline = time.monotonic() + 5
    while (found := living(mark)) and time.monotonic() < deadline:
        time.sleep(0.1)
    kill(found, signal.SIGKILL)
    return [f"process {pid} is left" for pid in found]


def kill(pids: Iterable[int], number: int) -> None:
    """Send a signal to those processes that are still there."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def judge_output(said: str, code: int, allowed: Container[int]) -> list[str]:
    """Return what is wrong with what a command printed and with its exit code."""
    broken = ["traceback: " + said[-500:]] if "Traceback" in said else []
    return [*broken, *([] if code in allowed else [f"exit code {code}: {said[-300:]}"])]


def write_cases(path: pathlib.Path | None, head: dict[str, object], cases: list[dict]) -> NoReturn:
    """Write what came of all cases, one a line; the exit code says whether a promise is broken."""
    broken = sum(bool(case["broken"]) for case in cases)
    print(f"{len(cases)} cases, {broken} of them break a promise")
    if path is not None:
        tables.write_rows(path, {**head, "broken": broken}, "cases", cases)
    sys.exit(bool(broken))


@dataclass
class Case:
    """One command with one fault."""

    folder: pathlib.Path
    random: random.Random
    mark: str
    span: float
    """Seconds that a command without a fault takes: faults come at any moment of it."""
    middle: str = "Slow"
    output: str = "results/out.json"
    options: list = field(default_factory=list)
    environment: dict = field(default_factory=dict)
    layout: str = ""
    """Of several processes, where the suite has some."""
    model: str = MODEL
    suite: str = SUITE
    root: pathlib.Path = ROOT
    file_limit: int | None = None
    driver: dict = field(default_factory=dict)
    """Environment of a stand-in NVML; where it is asked for, ``memcalc run`` is the command."""
    killed: bool = False
    """The command itself is killed, so its exit code is the signal's."""
    started: subprocess.Popen | None = None

    def start(self) -> None:
        """Start the command."""
        (self.folder / "results").mkdir(exist_ok=True)
        (self.folder / "faulty.py").write_text(self.model)
        (self.folder / "suite.toml").write_text(self.suite.replace("MIDDLE", self.middle))
        command = [*"measure --suite suite.toml --steps 2 --no-estimate --timeout 60".split(),
                   "-o", self.output]  # fmt: skip
        if self.driver:
            self._make_driver()
            sleep = "import time; time.sleep(0.5)"
            command = ["run", "-o", self.output, "--", sys.executable, "-c", sleep]
        self.started = subprocess.Popen(
            [sys.executable, "-m", "memcalc", *command, *self.options],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={
                **os.environ,
                "MEMCALC_MARK": self.mark,
                "PYTHONPATH": str(ROOT),
                **self.driver,
                **self.environment,
            },
            preexec_fn=self._prepare,
        )

    def _prepare(self) -> None:
        # A shell that starts this in the background has Ctrl-C ignored.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        if self.file_limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (self.file_limit, self.file_limit))

    def _make_driver(self) -> None:
        """A stand-in NVML one of whose functions fails after some calls."""
        source = ROOT / "tests" / "measure" / "nvml.c"
        library = self.folder / "libnvidia-ml.so.1"
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
        function, code = self.random.choice(DRIVER_CALLS), self.random.choice(DRIVER_ERRORS)
        (self.folder / "script").write_text(
            f"card GPU-1 H200 85899345920 0 1073741824\nprocess GPU-1 1 1073741824 other\n"
            f"fail {function} {code} {self.random.randrange(4)}\n"
        )
        self.driver = {
            "LD_LIBRARY_PATH": str(self.folder),
            "NVML_SCRIPT": str(self.folder / "script"),
        }

    def left(self) -> list[str]:
        """Which of its processes are there seconds after it ended; they are killed."""
        return left(self.mark)

    def processes(self) -> list[int]:
        """Everything that this command has started and that still lives, itself first."""
        return living(self.mark)

    def wait(self) -> None:
        """Let some of the command's time pass."""
        time.sleep(self.random.uniform(0, self.span))

    def runs(self) -> list[str] | None:
        """Plans that the file has finished; ``None``: there is no file yet."""
        path = self.folder / self.output
        if not path.exists():
            return None
        return [repr(run.plan) for run in load(path) if run.measurement is not None]
