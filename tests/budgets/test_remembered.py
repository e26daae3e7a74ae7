"""A command's answer is kept until something changes that it may depend on."""

import json
import subprocess
import sys

import pytest

from memcalc.budgets.collect import simulate_command
from memcalc.catalog.plan import make
from memcalc.script import opened, process
from memcalc.script.opened import Opened

TRAIN = """
import json
import torch
from layers import model
with open("settings.json") as file:
    rows = json.load(open(json.load(file)["data"]))
net = model().cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
net(torch.tensor(rows, device="cuda")).sum().backward()
optimizer.step()
"""
FILES = {
    "train.py": TRAIN,
    "layers.py": "import torch\ndef model():\n    return torch.nn.Linear(2, 8)\n",
    "settings.json": '{"data": "rows.json"}',
    "rows.json": "[[1.0, 2.0]]",
}


@pytest.fixture
def check(tmp_path, forked_scripts, monkeypatch):
    """Write the files of a script; the function answers, and returns whether it was run."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    runs, real = [], process.Run._run

    def run(*args, **how):
        runs.append(args)
        return real(*args, **how)

    monkeypatch.setattr(process.Run, "_run", run)

    def answer(command="python train.py", **how):
        runs.clear()
        evidence = simulate_command(make({"command": command}), tmp_path, "train", **how)
        assert evidence.prediction is not None, evidence.error
        return evidence, bool(runs)

    return answer


def test_a_command_runs_again_when_what_it_reads_has_changed_and_not_before(
    check, tmp_path, monkeypatch
):
    first, ran = check()
    assert ran
    assert check() == (first, False)
    for name, text in (
        ("rows.json", "[[1.0, 2.0], [3.0, 4.0]]"),
        ("layers.py", FILES["layers.py"].replace("8", "9000")),
        ("checkpoint.pt", ""),  # the script might look for it
    ):
        (tmp_path / name).write_text(text)
        (again, ran), (kept, ran_twice) = check(), check()
        assert (ran, ran_twice, again) == (True, False, kept), name
    assert kept.prediction.peak.requested > first.prediction.peak.requested
    assert check(use_cache=False)[1]
    monkeypatch.setenv("MEMCALC_MINE", "16")
    assert check()[1]


def test_a_script_that_asks_a_host_or_starts_a_program_is_run_each_time(tmp_path):
    def noted(code):
        start = "import sys; from pathlib import Path; from memcalc.script import opened\n"
        start += "opened.note_in(Path(sys.argv[1]))\n"
        path = tmp_path / "noted"
        path.unlink(missing_ok=True)
        subprocess.run([sys.executable, "-c", start + code, str(path)], cwd=tmp_path, check=True)
        return opened.read(path, Opened())

    (tmp_path / "here").write_text("")
    assert str(tmp_path / "here") in noted("open('here')").paths
    assert str(tmp_path) in noted("import os; os.listdir()").paths
    assert noted("open('here')").unknown == ""
    asks = "import socket\ntry: socket.getaddrinfo('example.invalid', 80)\nexcept OSError: pass"
    assert noted(asks).unknown == "it asks example.invalid"
    assert noted("import subprocess; subprocess.run(['true'])").unknown == "it starts true"
    assert noted("import os\nif not os.fork(): open('here')\nelse: os.wait()").paths
    assert opened.read(tmp_path / "none", Opened()).unknown


def test_what_a_programs_files_name_is_its_own_and_packages_are_not(tmp_path):
    rows, config = tmp_path / "data" / "rows.parquet", tmp_path / "config.yaml"
    rows.parent.mkdir()
    rows.write_bytes(b"\0PAR1")
    config.write_text("data: data/rows.parquet\nelsewhere: data/none.parquet\n")
    read = [str(config), json.__file__, pytest.__file__, "/proc/cpuinfo"]
    found = opened.own_paths(read, [tmp_path], tmp_path / "cache")
    assert found == {str(config), str(rows)}
