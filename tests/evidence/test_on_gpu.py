"""What is recorded on a machine with a GPU is ready to be run, though no test has one."""

import json
import pathlib
import subprocess
import sys

from tests.conftest import ROOT

sys.path.append(str(ROOT / "benchmarks"))
import on_gpu


def test_every_part_names_files_that_are_there(tmp_path):
    for name, part in on_gpu.parts(tmp_path).items():
        for command in filter(None, (part.command, part.compared)):
            files = [pathlib.Path(word) for word in command if word.endswith((".py", ".toml"))]
            assert all(file.exists() for file in files), name
            assert command[0] == sys.executable


def test_a_part_that_fails_and_one_that_never_ends_leave_the_next_its_time(tmp_path, capsys):
    python = sys.executable

    chosen = {
        "fails": on_gpu.Part(1.0, (python, "-c", "raise SystemExit(3)")),
        "sleeps": on_gpu.Part(0.001, (python, "-c", "import time; time.sleep(99)")),
        "works": on_gpu.Part(1.0, (python, "-c", "print('done')")),
    }
    on_gpu.record(tmp_path, chosen, 1, {})
    ended = json.loads((tmp_path / "parts.json").read_text())
    assert [one["code"] for one in ended.values()] == [3, None, 0]
    assert "done" in (tmp_path / "log.txt").read_text()


def test_a_part_that_nobody_knows_is_refused(tmp_path):
    command = [sys.executable, str(ROOT / "benchmarks" / "on_gpu.py"), str(tmp_path), "nothing"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "no such part: nothing; choose from doctor, context," in done.stderr
