"""A command that is ended, however it is ended, leaves no process and no file behind."""

import getpass
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from tests.conftest import ROOT
from tests.measure import models

SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGKILL")
HANGS = ("zoo:Hangs", "--input", models.INPUT)
COMMANDS = {
    "estimate": ("estimate", *HANGS),
    "fit": ("fit", "gpt2", "--gpu", "t4", "--no-cache"),
    "explain": ("explain", *HANGS),
    "check": ("check", "--no-cache"),
    "measure": ("measure", *HANGS, "--device", "cpu", "--no-estimate", "-o", "out.json"),
}
BUDGET = f"""
[runs.hangs]
model = "zoo:Hangs"
inputs = ["{models.INPUT}"]
limits.peak = "1 GiB"
"""
# Each is a cold start; what they share is tested on tests/children's light job.
pytestmark = pytest.mark.nightly
CASES = [
    (name, number, processes) for name in COMMANDS for number in SIGNALS for processes in (2, 3)
]


def living(mark):
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                if mark in (entry / "environ").read_bytes() and state != "Z":
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def until(condition, seconds):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def _as_in_a_shell():
    # Tests run under nohup, or in the background, have been told to ignore these.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.mark.parametrize(("name", "number", "processes"), CASES)
def test_nothing_is_left_of_a_command_that_is_ended(tmp_path, name, number, processes):
    models.write(tmp_path)
    (tmp_path / "memcalc.toml").write_text(BUDGET)
    (tmp_path / "tmp").mkdir()
    mark = f"{os.getpid()}-{tmp_path}"
    command = subprocess.Popen(
        [sys.executable, "-m", "memcalc", *COMMANDS[name]],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "MEMCALC_WARM": "", "MEMCALC_MARK": mark,
             "TMPDIR": str(tmp_path / "tmp")},
        preexec_fn=_as_in_a_shell,
    )  # fmt: skip
    # Two: PyTorch is being imported. Three: the model's code runs.
    until(lambda: command.poll() is not None or len(living(mark.encode())) >= processes, 60)
    assert command.poll() is None, command.stderr.read()
    assert len(living(mark.encode())) >= processes
    command.send_signal(signal.Signals[number])
    _, said = command.communicate(timeout=10)
    assert command.returncode == (130 if number == "SIGINT" else -signal.Signals[number])
    assert "Traceback" not in said
    assert until(lambda: not living(mark.encode()), 3)
    if name == "measure":
        # A real run is PyTorch's as everybody's, who makes this folder as it is imported.
        allowed = {"torchinductor_" + getpass.getuser()}
    else:
        allowed = set()
        assert not (tmp_path / "out.json").exists()
    assert {path.name for path in (tmp_path / "tmp").iterdir()} <= allowed
