"""The live view of a command: over a stand-in driver, and a stand-in of PyTorch's counters."""

import json
import os
import pty
import re
import subprocess
import sys

import pytest

from memcalc.measure import followed
from memcalc.measure.gpu.sampler import CardWatch, Level
from memcalc.measure.watched_command import CommandNow
from memcalc.records.measurement import GpuProcess
from memcalc.report.watched import view
from tests.measure.driver import GIB, A, Driver, card, compile_driver, process

TORCH = {
    "torch/__init__.py": "from torch import cuda, optim\n",
    "torch/cuda.py": """
held = [0]
def is_initialized(): return True
def device_count(): return 1
def memory_allocated(device): return held[0]
def max_memory_allocated(device): return 3 << 30
""",
    "torch/optim/__init__.py": "from torch.optim import optimizer\n",
    "torch/optim/optimizer.py": """
hooks = []
def register_optimizer_step_post_hook(hook): hooks.append(hook)
""",
}
TRAIN = """
import os, pathlib, time, torch
for size in (1, 2, 3, 1):
    torch.cuda.held[0] = size << 30
    time.sleep(0.3)
    for hook in torch.optim.optimizer.hooks: hook(None)
script = pathlib.Path(os.environ["NVML_SCRIPT"])
with script.open("a") as file:
    file.write(f"process {os.environ['GPU']} {os.getpid()} {5 << 30} python\\n")
time.sleep(2)
print("trained")
raise SystemExit(7)
"""


@pytest.fixture
def driver(tmp_path):
    for name, text in TORCH.items():
        (tmp_path / "path" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "path" / name).write_text(text)
    # What hides another of its kind imports it.
    (tmp_path / "path" / "sitecustomize.py").write_text(
        "import os\nif 'MEMCALC_FOLLOWED' in os.environ: print('the site is customized')\n"
    )
    (tmp_path / "train.py").write_text(TRAIN)
    found = Driver(folder=compile_driver(tmp_path), script=tmp_path / "script")
    found.write(card(used=6 * GIB), process(77, GIB, name="other"))
    path = os.pathsep.join([str(tmp_path / "path"), found.env()["PYTHONPATH"]])
    found.environment = found.env(PYTHONPATH=path, GPU=A, COLUMNS="120")
    return found


def typed(tmp_path):
    return [
        sys.executable,
        "-m",
        "memcalc",
        "watch",
        "--",
        sys.executable,
        str(tmp_path / "train.py"),
    ]


def test_a_command_that_is_watched_runs_as_it_is_and_its_memory_is_seen(driver, tmp_path):
    done = subprocess.run(
        typed(tmp_path), capture_output=True, text=True, env=driver.environment, check=False
    )
    assert (done.returncode, done.stdout) == (7, "the site is customized\ntrained\n"), done.stderr
    assert re.search(
        r"NVIDIA-H200 .* 6.0 GiB of 80.0 GiB, this command 5.0 GiB at most", done.stderr
    )
    assert re.search(r"1.0 GiB  process 77, other, not of this command", done.stderr)
    assert re.search(r" 5.0 GiB  process \d+, python\n", done.stderr)
    assert "optimizer steps: 4, allocated 1.0 GiB now, 3.0 GiB at most" in done.stderr
    assert "▃" in done.stderr
    assert "█" in done.stderr


@pytest.mark.nightly  # A busy machine may miss a step.
def test_at_a_terminal_the_view_moves_below_what_the_command_prints(driver, tmp_path):
    shown = []

    def read(descriptor):
        shown.append(os.read(descriptor, 1 << 16))
        return shown[-1]

    code = f"import os; os.environ.update({json.dumps(driver.environment)}); "
    code += f"os.execv({sys.executable!r}, {typed(tmp_path)!r})"
    status = pty.spawn([sys.executable, "-c", code], read, lambda _: b"")
    text = b"".join(shown).decode()
    assert os.waitstatus_to_exitcode(status) == 7
    assert text.count("optimizer steps: 4") >= 1
    assert text.index("optimizer steps: 1") < text.index("optimizer steps: 3")
    assert "trained" in text


def test_without_a_gpu_the_view_says_why_and_keeps_within_the_screen(tmp_path):
    now = CommandNow(seconds=3, pids=frozenset(), resident=GIB, cards=(), reason="NVML: no.")
    one = followed.WatchedProcess(pid=1, steps=0, allocated=(GIB, 0, GIB) * 100, peak=GIB)
    lines = view(now, [one], 60)
    assert lines[1] == "GPU memory: n/a (NVML: no)"
    assert "no optimizer step yet" in lines[2]
    assert max(map(len, lines)) == 60
    assert len({*lines[3].strip()}) == 1  # each column shows the highest of its samples


def test_a_card_that_does_not_list_memory_of_a_process_is_not_said_to_hold_none():
    memory = type("M", (), {"used": GIB, "total": 4 * GIB})
    level = Level(memory=memory, users=(GpuProcess(pid=3, name="x", bytes=None),))
    gpu = CardWatch(card=type("C", (), {"name": "T4"}), before=level, now=level)
    now = CommandNow(seconds=1, pids=frozenset({3}), resident=0, cards=(gpu,), reason="")
    assert [line.split()[0] for line in view(now, [], 80)[1:]] == ["T4", "n/a"]
    assert "this command n/a at most" in view(now, [], 80)[1]
