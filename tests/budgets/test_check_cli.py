"""``memcalc check`` in a process of its own: exit codes, formats, and what it prints."""

import json
import math
import os
import pathlib
import subprocess
import sys

import psutil
import pytest

from memcalc.budgets import collect, remedies
from memcalc.budgets.judge import judge
from memcalc.budgets.read import read
from memcalc.budgets.records import Status
from memcalc.budgets.remedies import Adviser
from memcalc.errors import UsageError

DATA = pathlib.Path(__file__).parent.parent / "data"
FORMATS = ("table", "json", "markdown", "github", "junit", "sarif")
TINY = {
    "model_type": "distilbert", "vocab_size": 50, "dim": 16, "n_layers": 1, "n_heads": 2,
    "hidden_dim": 32, "max_position_embeddings": 32, "architectures": ["DistilBertForMaskedLM"],
}  # fmt: skip


@pytest.fixture
def repository(tmp_path, small):
    """A folder with a budget file."""

    def of(limits='peak = "8 GiB"', **more):
        (tmp_path / "memcalc.toml").write_text(small(limits, **more))
        return tmp_path

    return of


def test_0_when_all_budgets_hold(memcalc, repository):
    repository('peak = "8 GiB"\nweights = "300 MB"')
    done = memcalc("check")
    assert (done.returncode, done.stderr) == (0, "")
    assert "note: 300 MB is understood as 286.1 MiB (300,000,000 bytes)" in done.stdout
    assert done.stdout.splitlines()[-1] == "2 budgets: 2 ok"


def test_1_when_a_budget_is_exceeded_with_the_reason(memcalc, repository):
    repository('peak = "8 GiB"\nweights = "200 MiB"')
    done = memcalc("check", COLUMNS="120")
    assert done.returncode == 1
    first = done.stdout.splitlines()[1]
    assert first.startswith(" over")
    for words in ("small", "weights", "250.9 > 200.0 MiB", "+50.9"):
        assert words in first
    assert " small weights: " in done.stdout
    assert "of the peak" in done.stdout


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no budgets"),
        ("[runs.a]\nmodel = 'gpt2'\noptim = 'adamx'\nlimits.peak = '1 GiB'\n", "memcalc.toml:3: "),
    ],
)
def test_2_when_the_file_is_not_understood_or_empty(memcalc, tmp_path, text, words):
    (tmp_path / "memcalc.toml").write_text(text)
    done = memcalc("check", "--exit-zero")
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("none.toml",),
        ("--format", "yaml"),
        ("--output", "x.pdf"),
        ("--device", "tpu", "--measure"),
        ("--measure", "--from", "x.json"),
        ("--from", "none.json"),
        ("--baseline", "none.json"),
        ("--jobs", "0"),
        ("--steps", "1", "--measure"),
        ("--steps", "3"),
        ("--device", "cpu"),
        ("--no-such-option",),
    ],
)
def test_2_when_the_options_are_not_understood(memcalc, repository, arguments):
    repository()
    done = memcalc("check", *arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_2_without_a_budget_file(memcalc, tmp_path):
    (tmp_path / ".git").mkdir()
    done = memcalc("check")
    assert done.returncode == 2
    assert "memcalc init" in done.stderr


@pytest.fixture
def failing(tmp_path):
    """A repository with a run that cannot be estimated and one that can."""

    def of(limit="8 GiB"):
        (tmp_path / "broken.py").write_text("def build():\n    raise OSError('no such data')\n")
        (tmp_path / "memcalc.toml").write_text(
            '[runs.broken]\nmodel = "broken:build"\ninputs = ["x=float32[2,2]"]\n'
            'limits.peak = "1 GiB"\n[runs.fine]\nmodel = "distilbert-base-cased"\n'
            f'method = "analytic"\nlimits.peak = "{limit}"\n'
        )

    return of


def test_3_when_a_run_fails_and_1_when_another_is_over_as_well(memcalc, failing):
    failing()
    done = memcalc("check", "--exit-zero")
    assert done.returncode == 3
    assert done.stdout.splitlines()[1].startswith(" unknown  broken")
    assert "no such data" in done.stdout
    failing("1 MiB")
    assert memcalc("check").returncode == 1


def test_files_are_written_beside_what_is_printed(memcalc, repository):
    folder = repository('weights = "200 MiB"')
    done = memcalc("check", "-o", "a.md", "-o", "b.xml", "-o", "c.sarif", "-o", "d.json")
    assert done.returncode == 1
    assert done.stdout.splitlines()[1].startswith(" over")
    starts = {"a.md": "<!-- mem", "b.xml": "<?xml", "c.sarif": "{", "d.json": "{"}
    assert all((folder / name).read_text().startswith(text) for name, text in starts.items())


def test_github_writes_the_step_summary(memcalc, repository):
    folder = repository('weights = "200 MiB"')
    summary = folder / "summary.md"
    summary.write_text("before\n")
    assert memcalc("check", "-f", "github", GITHUB_STEP_SUMMARY=str(summary)).returncode == 1
    assert summary.read_text().startswith("before\n<!-- memcalc:check -->")
    unwritable = memcalc("check", "-f", "github", GITHUB_STEP_SUMMARY=str(folder))
    assert unwritable.returncode == 1
    assert "step summary" in unwritable.stderr


@pytest.mark.parametrize(("environment", "painted"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_a_terminal_has_colors_unless_it_asks_for_none(repository, environment, painted):
    import os
    import pty

    folder = repository()
    parent, child = pty.openpty()
    env = {k: v for k, v in os.environ.items() if k != "NO_COLOR"} | {"TERM": "xterm"}
    root = str(pathlib.Path(__file__).parent.parent.parent)
    done = subprocess.run(
        [sys.executable, "-m", "memcalc", "check"],
        cwd=folder, stdout=child, env=env | environment | {"PYTHONPATH": root}, check=True,
    )  # fmt: skip
    os.close(child)
    assert done.returncode == 0
    assert ("\x1b[" in os.read(parent, 10_000).decode()) == painted


def test_a_terminal_that_knows_only_ascii_gets_an_answer(cold, repository):
    repository(name='"größe"')
    done = cold("check", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert done.returncode == 0, done.stderr
    assert "gr\\xf6\\xdfe" in done.stdout


def test_a_measured_run_is_saved_and_judged_elsewhere(memcalc, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    (tmp_path / "memcalc.toml").write_text(
        '[runs.tiny]\nmodel = "./config.json"\nbatch = 2\nseq = 8\ntarget = "cpu"\n'
        'limits = { peak = "1 B", weights = "1 MiB" }\n'
    )
    done = memcalc("check", "--measure", "--device", "cpu", "--steps", "2", "--save", "saved.json")
    assert done.returncode == 1, done.stderr
    assert "measured on the CPU" in done.stdout
    again = memcalc("check", "--from", "saved.json", "-f", "json")
    assert again.returncode == 1
    peak, weights = json.loads(again.stdout)["budgets"]
    assert (peak["metric"], peak["source"]) == ("peak.requested", "measured")
    assert peak["value"] > weights["value"] > 0
    (tmp_path / "memcalc.toml").write_text(
        (tmp_path / "memcalc.toml").read_text().replace("batch = 2", "batch = 3")
    )
    other = memcalc("check", "--from", "saved.json")
    assert other.returncode == 3
    assert "differs in batch" in " ".join(other.stdout.split())


def test_a_measurement_without_a_gpu_cannot_be_told(memcalc, repository):
    repository()
    done = memcalc("check", "--measure", CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 3
    assert done.stdout.splitlines()[1].startswith(" unknown")


@pytest.fixture
def suggested(memcalc, tmp_path):
    """What ``check`` suggests where activations are limited."""

    def of(limit):
        (tmp_path / "config.json").write_text(json.dumps(TINY | {"dim": 64, "hidden_dim": 256}))
        run = '[runs.a]\nmodel = "./config.json"\nlimits.activations = "{}"\n'
        (tmp_path / "memcalc.toml").write_text(run.format(limit))
        done = memcalc("check", "-f", "json", "--suggest")
        assert done.returncode == 1, done.stderr
        (budget,) = json.loads(done.stdout)["budgets"]
        assert budget["value"] > 1 << 20
        return budget["remedy"]

    return of


@pytest.mark.nightly
def test_a_suggestion_is_the_cheapest_change_that_keeps_the_budget(suggested):
    """Half a batch keeps half the activations."""
    remedy = suggested("1 MiB")
    assert "batch = 4, grad_accum = 2 (cost: " in remedy


@pytest.mark.nightly
def test_where_no_change_is_enough_it_is_said_so(suggested):
    assert suggested("1 B").startswith("no change is enough; ")


SCRIPT = """
import sys, torch
width = int(sys.argv[1])
model = torch.nn.Linear(width, width, bias=False, device="cuda")
optimizer = torch.optim.AdamW(model.parameters())
while width > 64:
    model(torch.ones(1, width, device="cuda")).sum().backward()
    optimizer.step()
"""
BUDGETS = """
[defaults]
precision = "amp-bf16"
[runs.holds]
command = "python train.py 1024"
steps = 2
limits.optimizer_state = "8 MiB"
limits.fits = "t4"
[runs.full]
command = "python train.py 40000"
limits.fits = "t4"
[runs.fails]
command = "python train.py wide"
limits.peak = "1 GiB"
[runs.rests]
command = "python train.py 64"
limits.peak = "1 TiB"
"""


def test_scripts_are_run_where_their_budgets_are_and_judged(
    tmp_path, capfd, forked_scripts, monkeypatch
):
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "memcalc.toml").write_text(BUDGETS)
    runs = read(tmp_path / "memcalc.toml").runs
    answers = collect.estimate(runs, collect.Question())
    found = {run.name: answer for run, answer in zip(runs, answers, strict=True)}
    verdicts = {run.name: judge(run, found[run.name], None) for run in runs}
    assert {v.status for v in verdicts["holds"]} == {Status.HOLDS}
    state = next(v for v in verdicts["holds"] if v.budget.metric == "optimizer_state")
    assert state.value == 2 * 4 * 1024 * 1024
    (full,) = verdicts["full"]
    assert full.status is Status.OVER
    assert full.difference > 3 << 30
    asked = []
    monkeypatch.setattr(
        remedies, "simulate_command", lambda plan, *_, **__: asked.append(plan) or found["full"]
    )
    told = Adviser(use_cache=False, timeout=math.inf)(full.budget, found["full"], None)
    assert [plan.alloc_conf for plan in asked] == ["expandable_segments:True"]
    assert told.startswith("the script itself must need less: ")
    assert told.endswith("with expandable_segments:True")
    (fails,) = verdicts["fails"]
    assert (fails.status, fails.reason) == (
        Status.UNKNOWN,
        "the script ended with exit code 1",
    )
    assert verdicts["rests"][0].reason == "the script made no optimizer step"
    assert "invalid literal for int() with base 10: 'wide'" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("line", "match"),
    [
        ("batch = 3", "batch is for runs of a model"),
        ('model = "gpt2"', "model is for runs of a model"),
        ('method = "analytic"', "a command is simulated"),
    ],
)
def test_a_command_says_the_rest_itself(tmp_path, line, match):
    file = tmp_path / "memcalc.toml"
    file.write_text(f'[runs.a]\ncommand = "python a.py"\n{line}\nlimits.peak = "1 GiB"\n')
    with pytest.raises(UsageError, match=match):
        read(file)


HANGS = """
import subprocess, time

def forever():
    while True:
        time.sleep(1)

if __name__ == "__main__":
    open("started", "w").write(str(subprocess.Popen(["sleep", "600"]).pid))
    forever()
"""
HANGING = """
[runs.command]
command = "python hangs.py"
limits.peak = "1 GiB"
[runs.model]
model = "hangs:forever"
limits.peak = "1 GiB"
"""


def test_no_run_takes_longer_than_the_time_it_is_given(memcalc, tmp_path):
    (tmp_path / "hangs.py").write_text(HANGS)
    (tmp_path / "memcalc.toml").write_text(HANGING)
    done = memcalc("check", "--timeout", "2", "-f", "json")
    assert done.returncode == 3, done.stderr
    command, model = sorted(one["reason"] for one in json.loads(done.stdout)["budgets"])
    told = "took longer than 2 seconds and was ended: give it more with --timeout."
    assert (command, model) == (f"The command {told}", f"The simulated run {told}")
    here = [one for one in psutil.process_iter(["cwd"]) if one.info["cwd"] == str(tmp_path)]
    assert [one for one in here if one.pid != os.getpid()] == []
