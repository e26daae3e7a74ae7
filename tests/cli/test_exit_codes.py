"""Whatever happens to a command is one sentence and the right exit code: 1 is over budget alone."""

import getpass
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
import typer

from memcalc.errors import MeasureTimeoutError, OverBudgetError
from tests.conftest import ROOT
from tests.measure import models


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (KeyboardInterrupt(), 130, "run it again to resume"),
        (typer.Abort(), 130, None),
        (BrokenPipeError(32, "Broken pipe"), 141, None),
        (OSError(28, "No space left on device"), 3, "Cannot write the answer: No space"),
        (PermissionError(13, "Permission denied", "x.json"), 3, "Cannot use x.json: Permission"),
        (MemoryError(), 3, "ran out of main memory"),
        (RecursionError("maximum recursion"), 3, "nested too deeply"),
        (SystemExit(0), 3, "memcalc itself failed (SystemExit: 0)"),
        (SystemExit(1), 3, "memcalc itself failed"),
        (KeyError("x"), 3, "memcalc itself failed (KeyError: 'x')"),
        (GeneratorExit(), 3, "memcalc itself failed (GeneratorExit)"),
        (typer.BadParameter("x"), 2, "x"),
        (OverBudgetError("Too much."), 1, "error: Too much."),
        (MeasureTimeoutError("Too long."), 124, "error: Too long."),
    ],
)
def test_every_error_has_its_sentence_and_exit_code(memcalc, monkeypatch, error, code, words):
    from memcalc.cli import doctor

    def fails(*_, **__):
        raise error

    monkeypatch.delenv("MEMCALC_DEBUG", raising=False)
    monkeypatch.setattr(doctor.command, "callback", fails)
    done = memcalc("doctor")
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    if words is None:
        assert done.stderr.strip() == ""
    else:
        assert words in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_a_person_who_looks_for_the_cause_sees_the_traceback(memcalc, monkeypatch):
    from memcalc.cli import doctor

    def fails(*_, **__):
        raise KeyError("x")

    monkeypatch.setattr(doctor.command, "callback", fails)
    monkeypatch.setenv("MEMCALC_DEBUG", "1")
    done = memcalc("doctor")
    assert done.returncode == 3
    assert "Traceback" in done.stderr


def typed(line):
    done = subprocess.run(
        ["bash", "-c", line.replace("memcalc", f"{sys.executable} -m memcalc")],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    return done


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("list models >/dev/full", 3, "Cannot write the answer: No space left on device."),
        ("list models >&-", 3, "Cannot write the answer: standard output is closed."),
        ("list models | head -n 0; exit ${PIPESTATUS[0]}", 141, ""),
        ("list gpus 2>&-", 0, ""),
    ],
)
def test_an_answer_that_cannot_be_written_is_not_given(line, code, said):
    done = typed(f"memcalc {line}")
    assert done.returncode == code
    assert done.stderr == (f"error: {said}\n" if said else "")


JUDGED = """
[runs.a]
model = "distilbert-base-cased"
method = "analytic"
[runs.a.limits]
peak = "{}"
"""


def test_a_check_that_cannot_show_its_verdict_is_not_green(tmp_path):
    (tmp_path / "memcalc.toml").write_text(JUDGED.format("100 GiB"))
    for to, why in (
        (">&-", "standard output is closed"),
        (">/dev/full", "No space left on device"),
    ):
        done = typed(f"cd {tmp_path}; memcalc check {to}")
        assert done.returncode == 3
        assert done.stderr == f"error: Cannot write the answer: {why}.\n"


@pytest.mark.nightly
def test_a_check_that_cannot_show_its_verdict_is_over_where_it_is(tmp_path):
    (tmp_path / "memcalc.toml").write_text(JUDGED.format("1 KiB"))
    assert typed(f"cd {tmp_path}; memcalc check >&-").returncode == 1


@pytest.mark.nightly
@pytest.mark.parametrize("words", ["check", "estimate distilgpt2 --no-cache"])
def test_a_command_whose_folder_is_gone_says_so(words):
    done = typed(f"mkdir /tmp/$$-gone; cd /tmp/$$-gone; rmdir /tmp/$$-gone; memcalc {words}")
    assert done.returncode == 2
    assert done.stderr == "error: The current folder is gone: change to one that exists.\n"


@pytest.mark.nightly
def test_a_child_whose_folder_is_gone_shows_no_traceback():
    done = typed(
        "mkdir /tmp/$$-gone; cd /tmp/$$-gone; echo 'import torch' > train.py; "
        "(sleep 0.5; rm -r $PWD) & memcalc simulate -- python train.py"
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stderr.endswith("error: The current folder is gone: change to one that exists.\n")


def test_no_figures_are_spoken_of_where_nothing_was_on_the_gpu(memcalc, monkeypatch):
    from memcalc.script import simulate
    from memcalc.script.answer import Simulated
    from memcalc.script.records import Ending

    ending = Ending(code=1, started=("python a.py", "torchrun b.py"))
    found = Simulated(ending=ending, traced=None)
    monkeypatch.setattr(simulate, "simulate", lambda *_, **__: found)
    run = memcalc("simulate", "--gpu", "t4", "--", "python", "train.py")
    assert run.returncode == 1
    assert "ended with exit code 1 before anything was on the GPU." in run.stderr
    assert (
        "type memcalc simulate -- python a.py or memcalc simulate -- torchrun b.py." in run.stderr
    )


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


# Each is a cold start; what they share is tested on tests/children's light job.
@pytest.mark.nightly
@pytest.mark.parametrize(("name", "number", "processes"), CASES)
def test_nothing_is_left_of_a_command_that_is_ended(tmp_path, name, number, processes):
    models.write(tmp_path)
    (tmp_path / "memcalc.toml").write_text(BUDGET)
    (tmp_path / "tmp").mkdir()
    # In a variable that children for known models get too.
    mark = f"{os.getpid()}-{tmp_path}"
    command = subprocess.Popen(
        [sys.executable, "-m", "memcalc", *COMMANDS[name]],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "XDG_MARK": mark,
             "TMPDIR": str(tmp_path / "tmp")},
        preexec_fn=_as_in_a_shell,
    )  # fmt: skip
    # Two: PyTorch is being imported. Three: the model's code runs.
    # A process that starts another program has no variables for a moment.
    begun = until(lambda: command.poll() is not None or len(living(mark.encode())) >= processes, 60)
    assert command.poll() is None, command.stderr.read()
    assert begun
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


# Each is a cold start, too.
@pytest.mark.nightly
@pytest.mark.parametrize(
    ("number", "words"),
    [
        *((number, ["sleep", "600"]) for number in SIGNALS),
        *((number, ["sh", "-c", "sleep 600; true"]) for number in SIGNALS),
    ],
)
def test_a_command_that_is_watched_ends_with_memcalc(number, words, tmp_path):
    mark = f"{os.getpid()}-{tmp_path}"
    process = subprocess.Popen(
        [sys.executable, "-m", "memcalc", "run", "-o", "r.json", "--", *words],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT), "MEMCALC_MARK": mark},
        preexec_fn=_as_in_a_shell,
    )
    # A process that starts another program has no variables for a moment.
    processes = 3 + ("sh" in words)
    begun = until(lambda: process.poll() is not None or len(living(mark.encode())) == processes, 60)
    assert process.poll() is None, process.stderr.read()
    assert begun
    process.send_signal(signal.Signals[number])
    # By SIGTERM where memcalc was not there to pass the signal on.
    by = signal.Signals[number]
    assert process.wait(10) in (-by, 128 + by, 128 + signal.SIGTERM)
    assert until(lambda: not living(mark.encode()), 5)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        *((name, "", "list gpus") for name in ("json", "typing", "enum", "msgspec", "typer")),
        *(("json", text, "list gpus") for text in ("1 / 0", "x = =")),
        # Only a child imports it, deep in a library.
        ("yaml", "1 / 0", "estimate gpt2 --no-cache"),
    ],
)
def test_a_file_that_hides_a_module_is_named_in_one_sentence(tmp_path, name, text, words):
    (tmp_path / f"{name}.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "memcalc", *words.split()],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"},
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.returncode) == ("", 2)
    assert done.stderr.startswith(f"error: {tmp_path}/{name}.py hides the {name} module")
    assert done.stderr.count("\n") == 1
