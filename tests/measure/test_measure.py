"""Real training on the CPU, through the real command."""

import json
import math
import pathlib

import pytest

from tests.measure import models

RUN = ("measure", "zoo:Small", "--input", models.INPUT, "--batch", "4", "--device", "cpu",
       "--steps", "2")  # fmt: skip


@pytest.fixture(autouse=True)
def _zoo(tmp_path):
    models.write(tmp_path)


def runs(tmp_path, name="out.json"):
    return json.loads((tmp_path / name).read_text())["runs"]


def suite(tmp_path, *wanted):
    lines = [f'[defaults]\ninputs = ["{models.INPUT}"]\noptim = "sgd"\ntarget = "cpu"']
    lines += [f'[[run]]\nmodel = "zoo:{name}"' for name in wanted]
    (tmp_path / "suite.toml").write_text("\n".join(lines))


def living(folder: pathlib.Path) -> list[str]:
    """Processes that are in this folder, or were started by one that was."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if (entry / "cwd").readlink() == folder:
                    found.append((entry / "cmdline").read_text())
            except OSError:
                continue
    return found


def test_runs_are_measured_estimated_kept_and_gone_on_with(memcalc, tmp_path):
    done = memcalc(*RUN, "--optim", "adamw,adam8bit", "-o", "out.json")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    found = runs(tmp_path)
    for run in found:
        measured, predicted = run["measurement"], run["prediction"]
        state = measured["state"]
        estimated = sum(t["numel"] * _width(t["dtype"]) for t in _state(predicted))
        assert state["device"] + state["host"] == estimated
        assert measured["weights"] == predicted["components"]["weights"]
        assert measured["gradients"] == predicted["gradients"]
        assert math.isfinite(measured["seconds_per_step"])
        assert measured["samples_per_second"] == 4 / measured["seconds_per_step"]
        assert measured["peak_rss"] > 50 << 20
        phases = {reading["phase"] for reading in measured["phases"]}
        assert {"load", "forward", "backward", "step", "zero_grad"} <= phases
        assert all(reading["allocated"] is None for reading in measured["phases"])
        assert "no CUDA allocator" in measured["unknown"]["allocated"]

    again = memcalc(*RUN, "--optim", "adamw", "-o", "out.json")
    assert again.returncode == 2
    assert "--continue" in again.stderr
    assert runs(tmp_path) == found

    more = memcalc(*RUN, "--optim", "adamw,sgd", "-o", "out.json", "--continue", "--no-estimate")
    assert more.returncode == 0
    assert runs(tmp_path)[:2] == found
    assert len(runs(tmp_path)) == 3

    assert memcalc("show", "out.json").stdout.count("zoo:Small") == 3
    compared = memcalc("compare", "out.json")
    assert "no estimate of zoo:Small: it is code" in compared.stderr
    judged = compared.stdout
    assert "2 runs with a traced estimate" in judged
    assert "optimizer state     2               2" in judged


def _state(prediction):
    return prediction["optimizer_state"]["tensors"]


def _width(dtype):
    return {"float32": 4, "uint8": 1, "int64": 8}[dtype]


@pytest.mark.parametrize(
    ("by", "endless", "timeout"),
    [("memcalc", (), 12), pytest.param("cold", ("Spawns",), 40, marks=pytest.mark.nightly)],
)
def test_a_run_that_ends_badly_is_one_line_and_the_rest_goes_on(
    request, tmp_path, by, endless, timeout
):
    suite(tmp_path, "Small", "Aborts", "Killed", "Leaves", "Raises", "Babbles", "TooLarge",
          "Nothing", *endless, "Small")  # fmt: skip
    command = request.getfixturevalue(by)
    done = command("measure", "--suite", "suite.toml", "--steps", "2",
                   "--timeout", str(timeout), "-o", "out.json", "--no-estimate")  # fmt: skip
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    first, aborts, killed, leaves, raises, babbles, large, nothing, *spawns, last = runs(tmp_path)
    assert first["measurement"] is not None
    assert last["measurement"] is not None
    assert "SIGABRT" in aborts["error"]
    assert "killed" in killed["error"]
    assert "exit code 7" in leaves["error"]
    assert "zoo:Raises: of the model's own (ValueError" in raises["error"]
    assert "unreadable message" in babbles["error"]
    assert "Nothing" in nothing["error"]
    assert len(spawns) == len(endless)
    assert all(f"longer than {timeout} seconds" in run["error"] for run in spawns)
    failed = large["measurement"]["out_of_memory"]
    assert failed["phase"] == "forward"
    assert failed["asked"] == 4 << 50
    assert large["measurement"]["weights"] > 0
    assert "no memory" in done.stdout.split("zoo:TooLarge")[1].split("\n")[0]
    assert living(tmp_path) == []


def test_without_a_gpu_measuring_on_cuda_says_so(memcalc):
    done = memcalc("measure", "zoo:Small", "--input", models.INPUT)
    assert done.returncode == 3
    assert done.stderr.count("No CUDA GPU here") == 1
    assert done.stdout == ""


def test_without_a_gpu_the_first_run_of_a_suite_says_so_for_all(memcalc, tmp_path):
    suite(tmp_path, "Small", "Other")
    done = memcalc("measure", "--suite", "suite.toml", "--device", "cuda", "-o", "out.json")
    assert done.returncode == 3
    assert "1 more run needs a GPU, and was not begun." in done.stderr
    assert len(runs(tmp_path)) == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("-o", "missing/out.json"), "Cannot write"),
        (("-o", "."), "Cannot"),
        (("-o", "zoo.py"), "another Python file"),
        (("--suite", "suite.toml"), "into suite.toml instead"),
        (("--snapshot", "a.pickle"), "on cuda"),
    ],
)
def test_what_cannot_work_is_said_before_anything_runs(memcalc, tmp_path, options, words):
    suite(tmp_path, "Small")
    done = memcalc(*RUN, *options)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_two_commands_do_not_write_the_same_file(memcalc, tmp_path):
    from memcalc.files import lock

    with lock.hold(tmp_path / "out.json"):
        done = memcalc(*RUN, "-o", "out.json")
    assert done.returncode == 2
    assert "Another memcalc is writing out.json" in done.stderr
    assert not any(tmp_path.glob("*.lock"))


def test_compare_reads_only_measurements(memcalc, tmp_path):
    (tmp_path / "other.json").write_text('{"schema": 1}')
    done = memcalc("compare", "other.json")
    assert done.returncode == 2
    assert "memcalc measure" in done.stderr
