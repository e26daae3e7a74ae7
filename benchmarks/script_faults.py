"""Scripts and environments that go wrong under simulation: no process, no file, the right code.

Usage: script_faults.py [NAME ...]. A script is run by ``memcalc.script``, or in a strange
environment by the command; where it ends as it says here, leaves the folder as it was and no
process behind, and says no more than a sentence of its own, nothing is printed. The exit code is
the number of those that did not.
"""

import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import psutil

from memcalc.errors import EstimateError, UsageError
from memcalc.script.simulate import make_plan, simulate

TRAIN = """
import os, sys, signal, threading, time, torch
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.AdamW(model.parameters())
def step():
    model(torch.ones(8, 64, device="cuda")).sum().backward()
    optimizer.step(); optimizer.zero_grad()
step()
"""
DIES, REFUSED = "dies", "refused"
FAULTS: dict[str, tuple[object, str]] = {
    "exits with a text": (1, "sys.exit('no data')"),
    "is interrupted": (130, "raise KeyboardInterrupt"),
    "ends itself": (DIES, "os.kill(os.getpid(), signal.SIGKILL)"),
    "recurses": (1, "f = lambda: f(); f()"),
    "wants another GPU": (1, "torch.ones(1, device='cuda:7')"),
    "fails in backward": (
        1,
        "class F(torch.autograd.Function):\n"
        "    forward = staticmethod(lambda ctx, x: x.clone())\n"
        "    backward = staticmethod(lambda ctx, g: 1 / 0)\n"
        "F.apply(torch.ones(1, device='cuda', requires_grad=True)).backward()",
    ),
    "closes standard error": (0, "os.close(2); step()"),
    "leaves its folder": (0, "os.chdir('/'); step()"),
    "forks": (0, "pid = os.fork()\nif pid == 0: os._exit(3)\nos.waitpid(pid, 0); step()"),
    "replaces its own signals": (0, "signal.signal(signal.SIGINT, signal.SIG_IGN); step()"),
    "unsets the environment": (0, "os.environ.clear(); step()"),
    "replaces its streams": (0, "import io; sys.stdout = sys.stderr = io.StringIO(); step()"),
    "empties the search path": (0, "sys.path[:] = []; step()"),
    "is traced": (0, "sys.settrace(lambda *_: None); step(); sys.settrace(None)"),
    "takes warnings for errors": (0, "import warnings; warnings.simplefilter('error'); step()"),
    "exits in a hook": (3, "model.register_forward_hook(lambda *_: sys.exit(3)); step()"),
    "exits with a large code": (44, "sys.exit(300)"),
    "has a pool of processes": (
        0,
        "import multiprocessing\n"
        "with multiprocessing.get_context('fork').Pool(2) as p: p.map(abs, [1])\nstep()",
    ),
    "has a spawned pool ask for the GPU": (
        0,
        "if __name__ == '__main__':\n    import multiprocessing\n"
        "    multiprocessing.get_context('spawn').Pool(1).map(abs, [1])",
    ),
    "interrupts itself": (
        0,
        "try: os.kill(os.getpid(), signal.SIGINT); time.sleep(5)\nexcept KeyboardInterrupt: step()",
    ),
    "shows its errors itself": (1, "sys.excepthook = lambda *_: print('mine'); 1 / 0"),
    "writes to a closed pipe": (1, "r, w = os.pipe(); os.close(r); os.write(w, b'x')"),
    "is ended by an alarm": (DIES, "signal.alarm(1); time.sleep(9)"),
    "becomes another program": (
        REFUSED,
        "os.execv(sys.executable, [sys.executable, '-c', 'pass'])",
    ),
    "is called by a timer": (
        0,
        "signal.signal(signal.SIGALRM, lambda *_: None)\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)\nfor _ in range(20): step()",
    ),
    "replaces open and print": (
        0,
        "import builtins; builtins.open = builtins.print = None; step()",
    ),
    "steps in a loop of events": (
        0,
        "import asyncio\nasync def train(): step(); await asyncio.sleep(0)\nasyncio.run(train())",
    ),
}


ENVIRONMENT: dict[str, tuple[int, str, str]] = {
    "no home": (0, "", "env -u HOME -u XDG_CACHE_HOME {run}"),
    "no folder for temporary files": (0, "", "TMPDIR=/nonexistent {run}"),
    "no visible GPU": (0, "", "CUDA_VISIBLE_DEVICES= {run}"),
    "another visible GPU": (0, "", "CUDA_VISIBLE_DEVICES=2 {run}"),
    "standard output is closed": (3, "", "{run} >&-"),
    "standard output is full": (3, "", "{run} > /dev/full"),
    "nobody reads the answer": (0, "", "set -o pipefail; {run} | tail -1"),
    "standard error is closed": (0, "", "{run} 2>&-"),
    "something to read": (0, "assert input() == 'data'", "echo data | {run}"),
    "nothing to read": (0, "assert sys.stdin is None", "{run} <&-"),
    "no file may grow": (3, "", "(ulimit -f 0; {run}) 2>&1 | cat; exit ${{PIPESTATUS[0]}}"),
    # What compiles the driver, where that is not there yet, opens more.
    "few files may be open": (0, "", "{run} &> /dev/null; ulimit -n 12; {run}"),
    "little memory": (3, "", "ulimit -v 500000; {run}"),
    "plain ASCII": (0, "", "LC_ALL=C PYTHONUTF8=0 PYTHONIOENCODING=ascii {run}"),
    "much is printed": (0, "print('x' * 5_000_000); os.write(1, b'\\xff')", "{run} 2>/dev/null"),
    "its folder is removed": (
        0, "import shutil; shutil.rmtree(os.getcwd())", "mkdir x; cp train.py x; cd x; {run}",
    ),
    "a module of the same name": (
        0, "assert '' not in sys.path",
        "cp train.py random.py; {run}; code=$?; rm random.py; exit $code",
    ),
    "Python's own options": (0, "", "{memcalc} -- python -O -X dev -W error train.py"),
    "code in place of a file": (2, "", "{memcalc} -- python -c 'import torch'"),
    "code on standard input": (2, "", "{memcalc} -- python - < train.py"),
    "a signal of its own": (
        9,
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(9)); os.kill(os.getpid(), 15)",
        "{run}",
    ),
    "a path with other letters": (
        0, "", "mkdir дом; mv train.py дом; cd дом; {run}; code=$?; mv train.py ..; cd ..; "
        "rm -r дом; exit $code",
    ),
    "logs that PyTorch does not know": (3, "", "TORCH_LOGS=bogus {run}"),
    "a fault handler": (0, "import faulthandler; faulthandler.enable(); step()", "{run}"),
}  # fmt: skip
"""By name: the exit code, the rest of the script, and what a shell is told."""
COMMAND = f"{sys.executable} -m memcalc simulate --gpu t4 --steps 0"
PATIENCE = 3.0
"""Seconds within which processes of a command that was killed are gone."""


def main(*names: str) -> int:
    wrong = _scripts([name for name in names or FAULTS if name in FAULTS])
    for name in names or ENVIRONMENT:
        if name in ENVIRONMENT:
            with tempfile.TemporaryDirectory() as folder:
                wrong += _environment(name, Path(folder))
    return wrong


def _environment(name: str, folder: Path) -> int:
    expected, text, told = ENVIRONMENT[name]
    (folder / "train.py").write_text(TRAIN + text + "\n")
    shell = told.replace("{run}", f"{COMMAND} -- python train.py").replace("{memcalc}", COMMAND)
    ended = subprocess.run(
        ["bash", "-c", shell.replace("{{", "{").replace("}}", "}")],
        cwd=folder, capture_output=True, check=False, stdin=subprocess.DEVNULL,
        # Under nohup this process ignores it, and so would every other.
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
    )  # fmt: skip
    until = time.monotonic() + PATIENCE
    while _running(str(folder)) and time.monotonic() < until:
        time.sleep(0.1)
    said = (ended.stderr + ended.stdout).decode(errors="replace")
    left = sorted(path.name for path in folder.iterdir() if path.name not in ("train.py", "said"))
    ours = [line for line in said.splitlines() if line.startswith(("error:", "memcalc:"))]
    if (
        ended.returncode != expected
        or left not in ([], ["x"])
        or len(ours) > 1
        or "memcalc itself failed" in said
        # What fails as a program ends is shown, and changes nothing.
        or said.count("Traceback") > said.count("Exception ignored")
        or _running(str(folder))
    ):
        print(f"{name}: ended {ended.returncode}, not {expected}; left {left}: {said[-300:]}")
        return 1
    return 0


def _scripts(names: list[str]) -> int:
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        Path("kept.bin").write_bytes(b"data")
        for name in names:
            expected, text = FAULTS[name]
            Path("train.py").write_text(TRAIN + textwrap.dedent(text) + "\n")
            ended: object
            try:
                ended = simulate(make_plan(["python", "train.py"], gpu="t4", steps=0)).ending.code
            except UsageError:
                ended = REFUSED
            except EstimateError:
                ended = DIES
            left = sorted(path.name for path in Path(folder).iterdir())
            kept = left == ["kept.bin", "train.py"] and Path("kept.bin").read_bytes() == b"data"
            if ended != expected or not kept or _running(folder):
                wrong += 1
                print(f"{name}: ended {ended}, not {expected}; left {left}, {_running(folder)}")
        os.chdir("/")
    return wrong


def _running(folder: str) -> list[str]:
    """Processes other than this whose working folder is this one, and that run a script there."""
    found = []
    for process in psutil.process_iter():
        try:
            command = " ".join(process.cmdline())
            if "train.py" in command and process.cwd() == folder:
                found.append(command)
        except psutil.Error:
            continue
    return found


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
