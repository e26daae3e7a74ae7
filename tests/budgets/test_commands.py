"""Runs that are a repository's own scripts."""

import pytest

from memcalc.budgets import collect
from memcalc.budgets.judge import judge
from memcalc.budgets.read import read
from memcalc.budgets.records import Status
from memcalc.budgets.remedies import Adviser
from memcalc.errors import UsageError

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


def test_scripts_are_run_where_their_budgets_are_and_judged(tmp_path, capfd, forked_scripts):
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "memcalc.toml").write_text(BUDGETS)
    runs = read(tmp_path / "memcalc.toml").runs
    answers = collect.estimate(runs, collect.Effort())
    found = {run.name: answer for run, answer in zip(runs, answers, strict=True)}
    verdicts = {run.name: judge(run, found[run.name], None) for run in runs}
    assert {v.status for v in verdicts["holds"]} == {Status.HOLDS}
    state = next(v for v in verdicts["holds"] if v.budget.metric == "optimizer_state")
    assert state.value == 2 * 4 * 1024 * 1024
    (full,) = verdicts["full"]
    assert full.status is Status.OVER
    assert full.difference > 3 << 30
    with Adviser(use_cache=False) as advise:
        told = advise(full.budget, found["full"], None)
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
