"""How scripts end: what they asked to be called then, and what they leave running."""

import contextlib
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from memcalc.errors import EstimateError
from tests.conftest import ROOT

sys.path.append(str(ROOT / "benchmarks"))
import script_faults

BEGIN = """
import atexit, os, sys, tempfile, threading, time, weakref, torch
model = torch.nn.Linear(8, 8).cuda()
def said(word):
    with open("said", "a") as file:
        file.write(word)
"""
ENDS = {
    "in order": ("atexit.register(said, 'b'); atexit.register(said, 'a')", 0, "ab"),
    "after its code": ("atexit.register(said, 'a'); sys.exit(4)", 4, "a"),
    "after an error": ("atexit.register(said, 'a'); 1 / 0", 1, "a"),
    "not after os._exit": ("atexit.register(said, 'a'); said('b'); os._exit(6)", 6, "b"),
    "with a code of its own": ("atexit.register(said, 'a'); atexit.register(os._exit, 5)", 5, ""),
    "with errors": ("atexit.register(said, 'a'); atexit.register(sys.exit, 9)", 0, "a"),
    "but what was taken back": ("atexit.register(said, 'a'); atexit.unregister(said)", 0, ""),
    "finalizers": ("weakref.finalize(model, said, 'a')", 0, "a"),
}


ALWAYS = ("in order", "not after os._exit")


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        pytest.param(*end, id=name, marks=() if name in ALWAYS else pytest.mark.nightly)
        for name, end in ENDS.items()
    ],
)
def test_what_was_registered_is_called_at_the_end(run, tmp_path, text, code, said):
    assert run(f"{BEGIN}\n{text}").ending.code == code
    file = tmp_path / "said"
    assert (file.read_text() if file.exists() else "") == said


@pytest.mark.nightly
def test_a_temporary_file_that_a_script_leaves_open_is_deleted(run, tmp_path):
    assert (
        run(f"{BEGIN}\nkept = tempfile.NamedTemporaryFile(dir='.', prefix='mine')").ending.code == 0
    )
    assert not list(tmp_path.glob("mine*"))


def test_a_script_may_close_all_that_it_has_not_opened(run):
    found = run(f"{BEGIN}\nos.closerange(3, 256)\nmodel(torch.ones(2, 8, device='cuda'))")
    assert found.ending.code == 0
    assert found.traced is not None


ON_AND_ON = """
def train():
    while True:
        model(torch.ones(8, 8, device="cuda")).sum().backward()
for _ in range(3):
    threading.Thread(target=train, daemon=True).start()
time.sleep(0.2)
"""


# In one run of thirty its peaks cannot be told: threads allocate while peaks are read.
@pytest.mark.nightly
def test_threads_that_train_on_do_not_end_the_process(run):
    assert run(BEGIN + ON_AND_ON).ending.code == 0


NEGATIVE = """
import math, torch
loss = torch.nn.Linear(8, 8).cuda()(torch.rand(4, 8, device="cuda")).square().mean()
math.sqrt(loss.item() - 1)
"""


def test_an_error_of_a_number_that_was_read_says_that_it_was_not_computed(run, capfd):
    assert run(NEGATIVE).ending.code == 1
    shown = capfd.readouterr().err
    assert "math domain error" in shown or "expected a nonnegative" in shown
    assert "made up here (at train.py:4)" in shown
    assert "MEMCALC_SIMULATED" in shown


def test_weights_that_only_a_gpu_can_compress_are_refused_in_a_sentence(run, capfd):
    found = run("import torch\ntorch._cslt_compress(torch.rand(128, 128).half().cuda())")
    assert (found.ending.code, found.ending.out_of_memory) == (1, "")
    assert "only cuSPARSELt knows" in capfd.readouterr().err


STARTS = """
import os, subprocess, sys
os.environ["PATH"] = os.getcwd() + ":" + os.environ["PATH"]
subprocess.run([sys.executable, "-c", "pass"])
subprocess.run(["true", "x.py"])
subprocess.run(f"cd . && A=1 {sys.executable} -m none.train --lr 3 2> /dev/null", shell=True)
os.system("torchrun --help > /dev/null; true")
print(subprocess.check_output([sys.executable, "other.py", "a b"]).decode())
"""


def test_python_programs_that_a_script_starts_are_named(run, tmp_path):
    (tmp_path / "other.py").write_text("import sys\nprint(sys.argv[1])\n")
    (tmp_path / "torchrun").symlink_to("/bin/true")
    found = run(STARTS)
    assert (found.ending.code, found.traced) == (0, None)
    first, second, third = found.ending.started
    assert first == "A=1 python -m none.train --lr 3 2> /dev/null"
    assert second == "torchrun --help > /dev/null"
    assert third == "python other.py 'a b'"


def test_a_script_that_python_cannot_read_shows_no_frame_but_its_own(run, capfd):
    assert run("x = (").ending.code == 1
    said = capfd.readouterr().err
    assert "SyntaxError" in said
    assert "child.py" not in said


@pytest.mark.nightly
@pytest.mark.parametrize("name", [*script_faults.FAULTS, *script_faults.ENVIRONMENT])
def test_a_script_that_goes_wrong_leaves_nothing_and_has_its_exit_code(name, capfd, own_servers):
    assert script_faults.main(name) == 0, capfd.readouterr().out


EMPTIES = """
import sys, torch
torch.zeros(9, device="cuda")
sys.argv[:] = []
{}
"""


@pytest.mark.parametrize(
    ("last", "code"),
    [
        ("", 0),
        ("sys.exit(3)", 3),
        ("[][0]", 1),
        pytest.param("del sys.argv", 0, marks=pytest.mark.nightly),
        pytest.param("del sys.argv; [][0]", 1, marks=pytest.mark.nightly),
    ],
)
def test_a_script_may_empty_its_arguments(run, last, code):
    found = run(EMPTIES.format(last))
    assert found.ending.code == code
    assert found.traced.prediction.peak.allocated == 512


FORGES = """
import base64, pickle, torch
from memcalc.script import child
class Evil:
    def __reduce__(self):
        return exec, ("open('ran', 'w').close()",)
torch.zeros(9, device="cuda")
error = base64.b64encode(pickle.dumps(Evil())).decode()
child._raised.update({"error": error, "kind": "x", "text": "x", "trace": "x"})
"""


def test_nothing_that_a_script_puts_into_its_answer_runs_in_memcalcs_process(run, tmp_path):
    assert run(FORGES).ending.code == 0
    assert not (tmp_path / "ran").exists()


def test_an_answer_that_cannot_be_read_is_one_sentence(run):
    text = "import torch\ntorch.zeros(9, device='cuda')\nfrom memcalc.script import child\n"
    for data in ("b'{'", "b'3'", "b'\\xff'"):
        writes = f"child._write = lambda path, _: path.write_bytes({data})"
        with pytest.raises(EstimateError, match="answer cannot be read"):
            run(text + writes)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("os.getpid = None", ""),
        pytest.param("builtins.isinstance = None", "answer", marks=pytest.mark.nightly),
        pytest.param("builtins.Exception = None", "", marks=pytest.mark.nightly),
        pytest.param("sys.modules.clear()", "cannot be told|answer", marks=pytest.mark.nightly),
    ],
)
def test_a_program_that_changes_what_python_is_ends_without_a_traceback_of_memcalc(
    run, capfd, text, said
):
    begins = "import builtins, os, sys, torch\ntorch.zeros(9, device='cuda')\n"
    with pytest.raises(EstimateError, match=said) if said else contextlib.nullcontext():
        assert run(begins + text).ending.code == 0
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize("name", ["answer.json", "failure", "namespace.json"])
def test_a_pipe_in_place_of_an_answer_is_not_waited_for(run, name):
    text = "import os, torch\ntorch.zeros(9, device='cuda')\nfrom memcalc.script import child\n"
    makes = (
        f"path.with_name({name!r}).unlink(missing_ok=True) or os.mkfifo(path.with_name({name!r}))"
    )
    with pytest.raises(EstimateError, match="without an answer"):
        run(f"{text}child._write = lambda path, _: {makes}")


SILENT = """
class Silent(Exception):
    def __str__(self):
        raise ValueError
"""
CIRCLE = "one, two = OSError(), OSError()\none.__cause__, two.__cause__ = two, one\nraise one"


@pytest.mark.parametrize(
    "text",
    [
        f"{SILENT}raise Silent",
        f"import sys\n{SILENT}sys.exit(Silent())",
        pytest.param(
            f"{SILENT.replace('ValueError', 'SystemExit')}raise Silent", marks=pytest.mark.nightly
        ),
        CIRCLE,
    ],
)
def test_an_error_without_a_text_or_an_end_is_that_of_the_script(run, capfd, text):
    assert run(f"import torch\ntorch.zeros(9, device='cuda')\n{text}").ending.code == 1
    assert "child.py" not in capfd.readouterr().err


FORKS = """
import os, sys
{}
pid = os.fork()
if pid:
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5
    model(torch.ones(2, 8, device="cuda"))
else:
    sys.exit(5)
"""


def test_a_fork_that_goes_on_to_the_end_gives_no_answer(run, capfd):
    found = run(FORKS.format(BEGIN))
    assert found.ending.code == 0
    assert found.traced is not None
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.nightly
def test_a_full_standard_error_changes_nothing(memcalc, tmp_path):
    (tmp_path / "train.py").write_text("import torch\ntorch.zeros(9, device='cuda')\n1 / 0")
    typed = f"{sys.executable} -m memcalc simulate -- python train.py 2>/dev/full"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["bash", "-c", typed], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "reserved by PyTorch" in done.stdout


def test_an_answer_that_finds_no_room_is_told(run, capfd):
    text = "import torch\ntorch.zeros(9, device='cuda')\nfrom memcalc.script import child\n"
    text += "import errno, os\nfrom pathlib import Path\n"
    text += "def full(*_): raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))\n"
    with pytest.raises(EstimateError, match=r"Cannot write in /.*: No space left .* more room\."):
        run(text + "Path.write_bytes = full")
    assert capfd.readouterr().err == ""


def test_a_script_whose_name_is_not_in_utf8_is_told_so(memcalc, tmp_path):
    (tmp_path / "n\udcff.py").write_text("")
    done = memcalc("simulate", "--", "python", "n\udcff.py")
    assert done.returncode == 2
    assert "is not in UTF-8: rename the file" in done.stderr


TRAINS_ON = """
import subprocess, time, torch
subprocess.Popen(["sleep", "600"], start_new_session=True)
model = torch.nn.Linear(8, 8).cuda()
torch.save(model.state_dict(), "old.pt")
print("ready", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("name", "wait"),
    [
        pytest.param("KILL", "import", marks=()),
        *(
            pytest.param(name, wait, marks=pytest.mark.nightly)
            for name in ("KILL", "TERM", "HUP", "INT")
            for wait in ("start", "import", "ready")
        ),
    ],
)
def test_nothing_is_left_of_a_script_when_memcalc_ends(name, wait, tmp_path):
    (tmp_path / "train.py").write_text(TRAINS_ON)
    (tmp_path / "old.pt").write_text("old")
    (tmp_path / "tmp").mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "memcalc", "simulate", "--", "python", "train.py"],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "TMPDIR": str(tmp_path / "tmp"),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: [
            signal.signal(one, signal.SIG_DFL) for one in (signal.SIGINT, signal.SIGHUP)
        ],
    )
    if wait == "ready":
        assert process.stderr.readline() == "ready\n"
    else:
        until(lambda: of_run(tmp_path))
        time.sleep(0.3 if wait == "import" else 0)
    number = signal.Signals[f"SIG{name}"]
    (os.killpg if name == "INT" else os.kill)(process.pid, number)
    _, said = process.communicate()
    assert process.returncode in (-number, 130)
    assert "Traceback" not in said
    until(lambda: not of_run(tmp_path))
    until(lambda: not any((tmp_path / "cache" / "runs").iterdir()))
    assert not any((tmp_path / "tmp").iterdir())
    assert (tmp_path / "old.pt").read_text() == "old"


def test_what_the_shell_of_a_killed_run_has_started_ends(tmp_path):
    command = [sys.executable, "-m", "memcalc", "run", "--", "sh", "-c", "sleep 600; true"]
    process = subprocess.Popen(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)})
    until(lambda: any("sleep" in one.cmdline() for one in of_run(tmp_path)))
    process.kill()
    process.wait()
    until(lambda: not of_run(tmp_path))


def until(holds):
    """Wait for what comes soon."""
    end = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def of_run(folder):
    """Return processes, other than memcalc's own, that run in a folder."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            own = "memcalc" in process.cmdline()
            if process.cwd() == str(folder) and not own and process.status() != "zombie":
                found.append(process)
    return found
