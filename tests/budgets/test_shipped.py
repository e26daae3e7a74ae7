"""What others run as it is: the steps of the GitHub Action, and the pre-commit hook."""

import os
import pathlib
import re
import shlex
import subprocess
import sys
import tomllib

import pytest
import yaml

from memcalc.budgets.metrics import METRICS
from memcalc.budgets.read import read
from tests.conftest import ROOT

ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
STEPS = {step["name"]: step for step in ACTION["runs"]["steps"]}
GH = """#!/bin/sh
echo "$@" >> "$GH_LOG"
case "$*" in *--jq*) printf "%s" "$GH_KNOWN"; exit 0;; esac
exit $GH_CODE
"""


@pytest.fixture
def job(tmp_path):
    """Run a step's script as the runner does, with memcalc and a recorded gh on the path."""
    binaries = tmp_path / "bin"
    binaries.mkdir()
    (binaries / "memcalc").write_text(f'#!/bin/sh\nexec {sys.executable} -m memcalc "$@"\n')
    (binaries / "gh").write_text(GH)
    for tool in binaries.iterdir():
        tool.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{binaries}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "RUNNER_TEMP": str(tmp_path),
        "GITHUB_WORKSPACE": str(tmp_path),
        "GITHUB_OUTPUT": str(tmp_path / "output"),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary"),
        "GITHUB_REPOSITORY": "me/mine",
        "GH_LOG": str(tmp_path / "gh.log"),
        "GH_CODE": "0",
        "GH_KNOWN": "",
    }

    def run(name, **more):
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", STEPS[name]["run"]]
        return subprocess.run(
            command, cwd=tmp_path, env=environment | more, capture_output=True, text=True
        )

    return run


def outputs(tmp_path):
    return dict(line.split("=", 1) for line in (tmp_path / "output").read_text().splitlines())


@pytest.mark.parametrize(
    ("limits", "code"), [('peak = "8 GiB"', "0"), ('weights = "1 MiB"', "1"), ("", "2")]
)
def test_the_action_hands_on_the_exit_code_and_the_report(job, tmp_path, small, limits, code):
    (tmp_path / "my.toml").write_text(small(limits))
    done = job("Check", FILES="my.toml", ARGS="--jobs 1")
    assert done.returncode == 0, done.stderr
    found = outputs(tmp_path)
    assert found["exit-code"] == code
    assert pathlib.Path(found["report"]).exists() == (code != "2")
    assert ("::error file=my.toml,line=" in done.stdout) == (code != "0")
    assert job("Verdict", CODE=code).returncode == int(code)


def test_without_files_the_action_takes_what_it_finds(job, tmp_path, small):
    (tmp_path / "memcalc.toml").write_text(small())
    assert job("Check", FILES="", ARGS="").returncode == 0
    assert outputs(tmp_path)["exit-code"] == "0"
    assert (tmp_path / "summary").read_text().startswith("<!-- memcalc:check -->")


@pytest.mark.parametrize("code", ["0", "1"])
def test_a_check_that_leaves_no_report_is_no_verdict(job, tmp_path, code):
    (tmp_path / "bin" / "memcalc").write_text(f"#!/bin/sh\nexit {code}\n")
    assert job("Check", FILES="", ARGS="").stdout.startswith("::error")
    assert outputs(tmp_path)["exit-code"] == "3"


def test_a_verdict_that_never_came_is_red(job):
    assert job("Verdict", CODE="").returncode == 3


@pytest.mark.parametrize(("known", "call"), [("", "POST"), ("77", "PATCH")])
def test_the_comment_is_written_once_and_then_updated(job, tmp_path, known, call):
    report = tmp_path / "report.md"
    report.write_text("<!-- memcalc:check -->\n")
    done = job("Comment", PULL="5", REPORT=str(report), GH_KNOWN=known)
    assert done.returncode == 0, done.stderr
    listed, written = (tmp_path / "gh.log").read_text().splitlines()
    assert "repos/me/mine/issues/5/comments" in listed
    assert call in written
    assert f"body=@{report}" in written
    assert ("comments/77" in written) == bool(known)


def test_a_comment_that_is_not_allowed_is_said_and_fails_nothing(job, tmp_path):
    (tmp_path / "report.md").write_text("x")
    done = job("Comment", PULL="5", REPORT=str(tmp_path / "report.md"), GH_CODE="1")
    assert done.returncode == 0
    assert done.stdout.startswith("::notice")
    assert job("Comment", PULL="5", REPORT=str(tmp_path / "none.md")).returncode == 0


def test_no_script_of_the_action_is_built_from_what_a_pull_request_says():
    for step in STEPS.values():
        assert "${{" not in step["run"]


def test_the_hook_runs_a_command_that_exists(memcalc):
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    tool, *arguments = shlex.split(hook["entry"])
    assert tool == "memcalc"
    assert memcalc(*arguments, "--help").returncode == 0
    for name in ("memcalc.toml", "sub/pyproject.toml", "memcalc-baseline.json"):
        assert re.search(hook["files"], name)
    assert not re.search(hook["files"], "notes.toml")


TEXT = (ROOT / "docs" / "ci.md").read_text()
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", TEXT, re.DOTALL)


@pytest.mark.parametrize("text", [text for kind, text in BLOCKS if kind == "toml"])
def test_a_budget_file_of_the_docs_is_understood(write, text):
    (run,) = read(write(text)).runs
    of_model = {"peak.allocated", "optimizer_state", "fits"}
    promised = {"finetune": of_model, "pretrain": {"peak.allocated", "fits"}}
    assert {budget.metric for budget in run.budgets} == promised[run.name]
    assert tomllib.loads(text)["runs"]


def test_yaml_of_the_docs_is_yaml_and_names_what_is_shipped():
    workflow, gitlab, hooks = [yaml.safe_load(text) for kind, text in BLOCKS if kind == "yaml"]
    inputs = yaml.safe_load((ROOT / "action.yml").read_text())["inputs"]
    assert set(workflow["jobs"]["memory"]["steps"][-1]["with"]) <= set(inputs)
    assert gitlab["memory"]["allow_failure"] == {"exit_codes": 3}
    shipped = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert hooks["repos"][0]["hooks"][0]["id"] == shipped[0]["id"]


def test_every_figure_a_budget_can_name_is_in_the_docs():
    assert [metric for metric in METRICS if f"`{metric}`" not in TEXT] == []
