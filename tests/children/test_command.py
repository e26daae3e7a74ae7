"""A command that ends with whoever started it, with all that it has started."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from memcalc.children import command, keeper
from memcalc.children.keeper import THEN
from tests.conftest import ROOT


def test_a_command_has_its_exit_code_and_its_output():
    done = command.run(
        ["sh", "-c", "cat; echo said >&2; exit 7"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (7, "", "said\n")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_a_command_that_a_signal_ends_is_told_so(number):
    assert command.run(["sh", "-c", f"kill -{int(number)} $$"]).returncode == -number


def test_a_command_that_is_not_there_is_an_error_of_the_system():
    with pytest.raises(FileNotFoundError, match="/no/such"):
        command.run(["/no/such"])


def test_a_command_has_the_signals_that_python_ignores():
    found = subprocess.run(["grep", "SigIgn", "/proc/self/status"], capture_output=True, text=True)
    done = command.run(["grep", "SigIgn", "/proc/self/status"], stdout=subprocess.PIPE, text=True)
    assert done.stdout == found.stdout


LEAVES = "(setsid sleep {mark} &); sleep {mark} & (sleep {mark} &) ; "


def running(mark):
    return [one for one in psutil.process_iter(["cmdline"]) if mark in (one.info["cmdline"] or [])]


def gone(mark):
    until = time.monotonic() + 10
    while running(mark) and time.monotonic() < until:
        time.sleep(0.02)
    return not running(mark)


@pytest.fixture
def mark():
    """A number of seconds that no other process sleeps."""
    return f"99{os.getpid()}.{time.monotonic_ns()}"


def test_what_a_command_leaves_behind_ends_with_it(mark):
    assert command.run(["sh", "-c", LEAVES.format(mark=mark)]).returncode == 0
    assert not running(mark)


_IGNORED = signal.SIGINT, signal.SIGHUP
"""What a shell has processes in the background ignore."""
STARTS = """
import sys
sys.path.append({root!r})
from memcalc.children import command
with command.own_folder() as folder:
    (folder / "kept").touch()
    (folder / "then.py").write_text(f"import os; os.remove('{{folder}}/kept'); open({then!r}, 'w')")
    command.run(["sh", "-c", {shell!r}], folder)
"""


BY_DAY = ("KILL", "INT")


def signals(*names):
    return [pytest.param(one, marks=() if one in BY_DAY else pytest.mark.nightly) for one in names]


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("name", signals("TERM", "HUP", "KILL", "INT"))
def test_a_command_ends_with_whoever_started_it_and_leaves_nothing(name, at_once, mark, tmp_path):
    then, shell = str(tmp_path / "then"), LEAVES.format(mark=mark) + f"echo; sleep {mark}"
    code = STARTS.format(root=str(ROOT), then=then, shell=shell)
    number = signal.Signals[f"SIG{name}"]
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=lambda: [signal.signal(one, signal.SIG_DFL) for one in _IGNORED],
        env={**os.environ, "MEMCALC_CACHE": str(tmp_path)},
    )
    if at_once:
        while not running(mark):
            assert process.poll() is None
    else:
        process.stdout.readline()
    (os.killpg if at_once else os.kill)(process.pid, number)
    process.communicate()
    assert process.returncode in (-number, 1, 130)
    assert gone(mark)
    until = time.monotonic() + 10
    while any((tmp_path / "runs").iterdir()) and time.monotonic() < until:
        time.sleep(0.02)
    assert not any((tmp_path / "runs").iterdir())
    assert Path(then).exists()


SLOWLY = """
import time
for word in ("begun", "done"):
    with open({said!r}, "a") as file:
        print(word, file=file)
    time.sleep(0.3)
"""
ENDS_SLOWLY = """
import sys
sys.path.append({root!r})
from memcalc.children import command
with command.own_folder() as folder:
    (folder / "then.py").write_text({slowly!r})
    command.run(["true"], folder)
"""


@pytest.mark.parametrize("name", signals("TERM", "KILL", "INT"))
def test_what_is_done_when_a_command_has_ended_is_done_once_whoever_dies(name, tmp_path):
    said = tmp_path / "said"
    code = ENDS_SLOWLY.format(root=str(ROOT), slowly=SLOWLY.format(said=str(said)))
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        env={**os.environ, "MEMCALC_CACHE": str(tmp_path)},
    )
    until = time.monotonic() + 10
    while not said.exists() and time.monotonic() < until:
        time.sleep(0.02)
    process.send_signal(signal.Signals[f"SIG{name}"])
    process.wait()
    while any((tmp_path / "runs").iterdir()) and time.monotonic() < until:
        time.sleep(0.02)
    assert said.read_text().split() == ["begun", "done"]
    assert not any((tmp_path / "runs").iterdir())


@pytest.mark.parametrize("which", [0, 1])
def test_a_killed_keeper_leaves_no_process_of_its_command(which, mark):
    started = command.start(["sh", "-c", LEAVES.format(mark=mark) + f"sleep {mark}"])
    while len(running(mark)) < 4:
        assert started.poll() is None
    outer = psutil.Process(started.pid)
    (outer, *outer.children())[which].kill()
    assert started.wait() == -signal.SIGKILL
    assert gone(mark)


INSTALLS = """
import sys
from pathlib import Path
sys.path.append({root!r})
from memcalc.children.command import vanishing
from memcalc.engine.environment.uv import Uv
folder = Path({folder!r})
with vanishing(folder):
    Uv(folder).install({{}}, "nothing")
"""


def test_an_installer_ends_with_whoever_started_it(mark, tmp_path):
    folder, uv = tmp_path / "filled", tmp_path / "bin" / "uv"
    folder.mkdir()
    uv.parent.mkdir()
    uv.write_text(f"#!/bin/bash\necho --excludes\n[ $2 = compile ] || sleep {mark}\ntrue\n")
    uv.chmod(0o755)
    code = INSTALLS.format(root=str(ROOT), folder=str(folder))
    path = f"{uv.parent}:/usr/bin:/bin"
    process = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "PATH": path})
    while not running(mark):
        assert process.poll() is None
    process.terminate()
    process.wait()
    assert gone(mark)
    until = time.monotonic() + 10
    while folder.exists() and time.monotonic() < until:
        time.sleep(0.02)
    assert not folder.exists()


def test_a_run_does_not_lie_in_a_cache_without_room_for_it(tmp_path, monkeypatch):
    monkeypatch.setenv("MEMCALC_CACHE", str(tmp_path))
    monkeypatch.setattr(
        command, "_free", lambda folder: 5000 if folder == tmp_path / "runs" else 6000
    )
    with command.own_folder() as folder:
        assert tmp_path not in folder.parents
    monkeypatch.setattr(command, "_free", lambda folder: 0)
    with command.own_folder() as folder:
        assert tmp_path in folder.parents


def test_a_folder_of_a_run_that_was_lost_is_swept(tmp_path, monkeypatch):
    monkeypatch.setenv("MEMCALC_CACHE", str(tmp_path))
    lost, new = (tmp_path / "runs" / name for name in ("lost", "new"))
    for folder in (lost, new):
        (folder / "inner").mkdir(parents=True)
        (folder / "inner").chmod(0)
    (lost / THEN).write_text(f"open({str(tmp_path / 'then')!r}, 'w').close()")
    os.utime(lost, (0, 0))
    with command.own_folder() as used:
        assert {path.name for path in (tmp_path / "runs").iterdir()} == {"new", used.name}
        os.utime(used, (0, 0))
        with command.own_folder():
            assert used.exists()
    assert (tmp_path / "then").exists()


REMOVES = """
import os, resource, sys
sys.path.append({root!r})
from memcalc.children import keeper
resource.setrlimit(resource.RLIMIT_NOFILE, (8, 8))
keeper.remove({folder!r})
"""


def test_a_deep_folder_is_removed_by_a_process_that_may_open_few_files(tmp_path):
    folder = tmp_path / "folder"
    (folder / "/".join("d" * 30)).mkdir(parents=True)
    (folder / "unreadable").mkdir(mode=0)
    (folder / "link").symlink_to(tmp_path)
    code = REMOVES.format(root=str(ROOT), folder=str(folder))
    subprocess.run([sys.executable, "-c", code], check=True)
    assert [path.name for path in tmp_path.iterdir()] == []


def test_a_folder_with_paths_that_are_too_long_is_removed(tmp_path):
    here = os.getcwd()
    try:
        os.chdir(tmp_path)
        for _ in range(30):
            os.mkdir("d" * 200)
            os.chdir("d" * 200)
    finally:
        os.chdir(here)
    keeper.remove(str(tmp_path / ("d" * 200)))
    assert not any(tmp_path.iterdir())
