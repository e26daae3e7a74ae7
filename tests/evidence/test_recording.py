"""What a recording says of its making, and that none of it is lost."""

import json
import pathlib
import runpy

import pytest

ROOT = pathlib.Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
RUNS = sorted(
    path
    for path in (ROOT / "evidence" / "standin").glob("*.json")
    if path.name.split("-")[0] in ("runs", "loops", "parallel", "quant", "own", "deepspeed")
)


def test_a_recording_that_does_not_say_what_ran_as_cudnn_is_not_judged(tmp_path):
    recording = json.loads((ROOT / "evidence/standin/own-torch2.13-cc90.json").read_text())
    del recording["settings"]["STANDIN_CUDNN"]
    path = tmp_path / "own.json"
    path.write_text(json.dumps(recording))
    with pytest.raises(ValueError, match="what ran as cuDNN"):
        runpy.run_path(str(BENCHMARKS / "accuracy.py"))["compare"](path)


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.stem)
def test_every_recording_says_what_ran_as_cudnn(path):
    assert "STANDIN_CUDNN" in json.loads(path.read_text())["settings"]


def test_nothing_is_recorded_before_it_is_said_what_runs_as_cudnn(monkeypatch):
    settings = runpy.run_path(str(BENCHMARKS / "record_standin.py"))["settings"]
    monkeypatch.delenv("STANDIN_CUDNN", raising=False)
    with pytest.raises(SystemExit, match="STANDIN_CUDNN"):
        settings()
    monkeypatch.setenv("STANDIN_CUDNN", "90100")
    monkeypatch.setenv("STANDIN_PYTHON", "/usr/bin/python3")
    assert settings() == {"STANDIN_CUDNN": "90100"}


def test_scripts_that_are_recorded_are_kept_when_a_later_one_fails(tmp_path):
    script = runpy.run_path(str(BENCHMARKS / "record_scripts.py"))
    recorded = []

    def next_one(path, python, reads):
        recorded.append(path.stem)
        if len(recorded) == 3:
            raise TimeoutError
        return {"code": 0, "torch": "2.13.0+cu130", "peaks": {"reserved": len(recorded)}}

    file = tmp_path / "scripts.json"
    script["main"].__globals__["_recorded"] = next_one
    with pytest.raises(TimeoutError):
        script["main"](str(file), "python")
    kept = json.loads(file.read_text())
    assert set(kept["scripts"]) == set(recorded[:2])
    assert kept["gpu"]
    assert list(tmp_path.iterdir()) == [file]
