"""Scripts that go wrong on the simulated GPU: each must leave no process, no file and its own code.

Usage: script_faults.py [NAME ...]. A script is run by ``memcalc.script``; where it ends as it says
here, leaves the folder as it was and no process behind, nothing is printed; the exit code is the
number of scripts that did not.
"""

from __future__ import annotations

import os
import sys
import tempfile
import textwrap
from pathlib import Path

from memcalc.errors import EstimateError, UsageError
from memcalc.script.simulate import plan_of, simulate, simulating_parent

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
    "raises": (1, "raise ValueError('x')"),
    "asserts": (1, "assert False"),
    "exits with a code": (7, "sys.exit(7)"),
    "exits with a text": (1, "sys.exit('no data')"),
    "exits at once": (5, "os._exit(5)"),
    "is interrupted": (130, "raise KeyboardInterrupt"),
    "ends itself": (DIES, "os.kill(os.getpid(), signal.SIGKILL)"),
    "is terminated": (DIES, "os.kill(os.getpid(), signal.SIGTERM)"),
    "crashes": (DIES, "import ctypes; ctypes.string_at(0)"),
    "aborts": (DIES, "os.abort()"),
    "recurses": (1, "f = lambda: f(); f()"),
    "has no memory": (1, "torch.empty(1 << 40, device='cuda')"),
    "fills the GPU in backward": (
        1,
        "x = torch.ones(1 << 29, device='cuda', requires_grad=True)\n"
        "kept = [x * 2 for _ in range(6)]\n"
        "sum(y.sum() for y in kept).backward()",
    ),
    "wants another GPU": (1, "torch.ones(1, device='cuda:7')"),
    "sets another GPU": (1, "torch.cuda.set_device(3)"),
    "mixes devices": (1, "model(torch.ones(8, 64))"),
    "mixes shapes": (1, "model(torch.ones(8, 63, device='cuda'))"),
    "fails in backward": (
        1,
        "class F(torch.autograd.Function):\n"
        "    forward = staticmethod(lambda ctx, x: x.clone())\n"
        "    backward = staticmethod(lambda ctx, g: 1 / 0)\n"
        "F.apply(torch.ones(1, device='cuda', requires_grad=True)).backward()",
    ),
    "fails in a hook": (1, "model.weight.register_hook(lambda g: 1 / 0); step()"),
    "closes standard error": (0, "os.close(2); step()"),
    "closes standard output": (0, "sys.stdout.close(); step()"),
    "leaves its folder": (0, "os.chdir('/'); step()"),
    "leaves a thread": (0, "threading.Thread(target=time.sleep, args=(99,), daemon=True).start()"),
    "leaves a child": (
        0,
        "import subprocess; subprocess.Popen(['sleep', '1'], start_new_session=True).wait()",
    ),
    "forks": (0, "pid = os.fork()\nif pid == 0: os._exit(3)\nos.waitpid(pid, 0); step()"),
    "saves over its data": (0, "torch.save(model.state_dict(), 'kept.bin'); step()"),
    "saves a safetensors file": (
        0,
        "from safetensors.torch import save_file; save_file(model.state_dict(), 'kept.bin')",
    ),
    "loads what is not there": (1, "torch.load('nothing.pt')"),
    "replaces its own signals": (0, "signal.signal(signal.SIGINT, signal.SIG_IGN); step()"),
    "has no syntax": (1, "this is no Python"),
    "needs a missing package": (1, "import nothing_like_it"),
    "unsets the environment": (0, "os.environ.clear(); step()"),
}


def main(*names: str) -> int:
    wrong = 0
    with simulating_parent() as parent, tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        Path("kept.bin").write_bytes(b"data")
        for name in names or FAULTS:
            expected, text = FAULTS[name]
            Path("train.py").write_text(TRAIN + textwrap.dedent(text) + "\n")
            ended: object
            try:
                plan = plan_of(["python", "train.py"], gpu="t4", steps=0)
                ended = simulate(plan, parent).ending.code
            except UsageError:
                ended = REFUSED
            except EstimateError:
                ended = DIES
            left = sorted(path.name for path in Path(folder).iterdir())
            kept = Path("kept.bin").read_bytes() == b"data"
            if (
                ended != expected
                or left != ["kept.bin", "train.py"]
                or not kept
                or _running(folder)
            ):
                wrong += 1
                print(f"{name}: ended {ended}, not {expected}; left {left}, {_running(folder)}")
        os.chdir("/")
    return wrong


def _running(folder: str) -> list[str]:
    """Processes other than this whose working folder is this one, and that run a script there."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            if "train.py" in command and os.readlink(process / "cwd") == folder:
                found.append(command)
        except OSError:
            continue
    return found


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
