"""How scripts end: what they asked to be called then, and what they leave running."""

import sys

import pytest

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


def test_a_script_may_close_all_that_it_has_not_opened(run):
    found = run(f"{BEGIN}\nos.closerange(3, 256)\nmodel(torch.ones(2, 8, device='cuda'))")
    assert found.ending.code == 0
    assert found.traced is not None


ON_AND_ON = """
def train():
    while True:
        model(torch.ones(8, 8, device="cuda")).sum().backward()
threading.Thread(target=train, daemon=True).start()
time.sleep(0.2)
"""


def test_a_thread_that_trains_on_does_not_end_the_process(run):
    assert run(BEGIN + ON_AND_ON).ending.code == 0


DIVIDES = """
import torch
loss = torch.nn.Linear(8, 8).cuda()(torch.rand(4, 8, device="cuda")).square().mean()
1 / loss.item()
"""


def test_an_error_of_a_number_that_was_read_says_that_it_was_not_computed(run, capfd):
    assert run(DIVIDES).ending.code == 1
    shown = capfd.readouterr().err
    assert "ZeroDivisionError" in shown
    assert "MEMCALC_SIMULATED" in shown


def test_weights_that_only_a_gpu_can_compress_are_refused_in_a_sentence(run, capfd):
    found = run("import torch\ntorch._cslt_compress(torch.rand(128, 128).half().cuda())")
    assert (found.ending.code, found.ending.out_of_memory) == (1, "")
    assert "only cuSPARSELt knows" in capfd.readouterr().err


STARTS = """
import os, subprocess, sys
subprocess.run([sys.executable, "-c", "pass"])
subprocess.run(["true", "x.py"])
subprocess.run(f"cd . && A=1 {sys.executable} -m none.train --lr 3 2> /dev/null", shell=True)
os.system("torchrun --help > /dev/null; true")
print(subprocess.check_output([sys.executable, "other.py", "a b"]).decode())
"""


def test_python_programs_that_a_script_starts_are_named(run, tmp_path):
    (tmp_path / "other.py").write_text("import sys\nprint(sys.argv[1])\n")
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
def test_a_script_that_goes_wrong_leaves_nothing_and_has_its_exit_code(name, capfd, monkeypatch):
    monkeypatch.setenv("MEMCALC_WARM", "")
    assert script_faults.main(name) == 0, capfd.readouterr().out
