"""memcalc explain, report and show as commands."""

import json
import pickle

import pytest
from msgspec.structs import replace

from memcalc.advice.remedies.records import Search
from memcalc.catalog import models
from memcalc.cli import explain


@pytest.fixture
def model(tmp_path):
    """A model that traces in a moment."""
    config = json.loads(models.list_bundled_files()["openai-community/gpt2"].read_text())
    small = {"n_layer": 2, "n_embd": 32, "n_head": 2, "vocab_size": 500}
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "config.json").write_text(json.dumps({**config, **small}))
    return ("./small/config.json", "--batch", "2", "--seq", "16")


def test_one_trace_serves_all_pictures_and_files(memcalc, model, tmp_path):
    done = memcalc("explain", *model, "--no-remedies", "-o", "why.json", "--plot")
    assert done.returncode == 0, done.stderr
    assert "W weights" in done.stdout
    body = json.loads((tmp_path / "why.json").read_text())
    assert body["kind"] == "explanation"
    assert sum(g["bytes"] for g in body["peak"]["groups"]) == body["peak"]["requested"]
    shown = memcalc("show", "why.json", "--top", "3")
    assert "Alive at the peak" in shown.stdout
    assert "more kinds" in shown.stdout
    assert memcalc("show", "why.json", "-f", "markdown").stdout.startswith("### ")
    for name, magic in (("a.html", b"<!doctype"), ("a.svg", b"<?xml"), ("a.png", b"\x89PNG")):
        done = memcalc("report", *model, "--no-remedies", "-o", name)
        assert done.returncode == 0, done.stderr
        assert (tmp_path / name).read_bytes().startswith(magic)
    assert memcalc("report", "why.json", "-o", "b.html").returncode == 0
    assert "is from a new run" in (tmp_path / "b.html").read_text()
    assert memcalc("report", *model, "-o", "run.pickle").returncode == 0
    shown = memcalc("show", "run.pickle", "--alloc-conf", "expandable_segments:True")
    assert shown.returncode == 0, shown.stderr
    assert "a replay by PyTorch equals the recording" in shown.stdout
    assert "transformer.wte" in shown.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("explain", "gpt2", "--format", "yaml"), "choose table, json or markdown"),
        (("explain", "gpt2", "--optim", "adamw,sgd"), "give --optim one value"),
        (
            ("explain", "gpt2", "-o", "x.html"),
            "end in .txt, .json or .md, or add --format",
        ),
        (("report", "gpt2"), "Type --output report.html"),
        (("report", "damaged.json", "-o", "x.html"), "no prediction that can be read"),
        (("report", "unexplained.json", "-o", "x.html"), "no explanation that can be read"),
        (("show", "code.pickle"), "is not a memory snapshot"),
        (("show", "damaged.json", "--gpu", "t4"), "are for snapshots"),
        (("show", "missing.pickle"), "Cannot read"),
    ],
)
def test_bad_input_gets_one_sentence_and_exit_code_2(
    memcalc, tmp_path, monkeypatch, arguments, words
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "damaged.json").write_text('{"schema": 1, "kind": "prediction"}')
    (tmp_path / "unexplained.json").write_text('{"schema": 1, "kind": "explanation"}')
    (tmp_path / "code.pickle").write_bytes(pickle.dumps({"segments": 3})[:-3])
    done = memcalc(*arguments)
    assert done.returncode == 2, done.stderr
    assert words in " ".join(done.stderr.split())
    assert len(done.stderr.strip().splitlines()) == 1


RUNS_OUT = """
import torch
held = [torch.empty(64 << 20, dtype=torch.uint8, device="cuda") for _ in range(3)]
def ask():
    return torch.empty(100 << 20, dtype=torch.uint8, device="cuda")
more = ask()
"""


def test_the_request_of_a_log_is_found_in_a_simulated_run_of_its_command(memcalc, tmp_path):
    (tmp_path / "train.py").write_text(RUNS_OUT)
    (tmp_path / "oom.txt").write_text(
        "CUDA out of memory. Tried to allocate 100.00 MiB. GPU 0 has a total capacity of 14.56 GiB "
        "of which 10.00 MiB is free. Including non-PyTorch memory, this process has 300.00 MiB "
        "memory in use. Of the allocated memory 192.00 MiB is allocated by PyTorch, and 0 bytes is "
        "reserved by PyTorch but unallocated.\n"
    )
    done = memcalc("explain", "oom.txt", "--", "python", "train.py")
    assert done.returncode == 0, done.stderr
    shown = " ".join(done.stdout.split())
    assert "simulated: 100.0 MiB" in shown
    assert "at train.py:5" in shown
    assert "beside 192.0 MiB" in shown
    assert memcalc("explain", "last", "--no-remedies").returncode == 0
    done = memcalc("explain", "gpt2", "--", "python", "train.py")
    assert done.returncode == 2
    assert "Scripts are run by simulate" in done.stderr


def test_the_last_run_is_the_last_of_this_folder(memcalc):
    done = memcalc("explain", "last")
    assert done.returncode == 2
    assert "No run of this folder" in done.stderr


def test_a_limit_that_nothing_meets_ends_with_1(memcalc, monkeypatch, explained):
    failed = replace(explained, search=Search(limit=1 << 20, rung="reserved", trials=(), best=None))
    monkeypatch.setattr(explain, "explain_plan", lambda plan, **wishes: failed)
    done = memcalc("explain", "gpt2", "--under", "1 MiB")
    assert done.returncode == 1
    assert "No change that was tried fits under 1.0 MiB" in done.stdout
    assert memcalc("explain", "gpt2").returncode == 0
