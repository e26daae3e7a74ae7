"""What docs/ci.md shows is what memcalc takes and prints."""

import pathlib
import re
import tomllib

import pytest
import yaml

from memcalc.budgets.metrics import METRICS
from memcalc.budgets.read import read

ROOT = pathlib.Path(__file__).parent.parent.parent
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
    documents = [yaml.safe_load(text) for kind, text in BLOCKS if kind == "yaml"]
    workflow, gitlab, hooks = documents
    inputs = yaml.safe_load((ROOT / "action.yml").read_text())["inputs"]
    step = workflow["jobs"]["memory"]["steps"][-1]
    assert set(step["with"]) <= set(inputs)
    assert gitlab["memory"]["allow_failure"] == {"exit_codes": 3}
    shipped = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert hooks["repos"][0]["hooks"][0]["id"] == shipped[0]["id"]


def test_every_figure_a_budget_can_name_is_in_the_docs():
    assert [metric for metric in METRICS if f"`{metric}`" not in TEXT] == []


def test_every_option_in_the_docs_exists(memcalc):
    known = memcalc("check", "--help").stdout + memcalc("init", "--help").stdout
    used = set(re.findall(r"memcalc (?:check|init)[^\n`]*?(--[a-z-]+)", TEXT))
    assert used
    assert [option for option in used if option not in known] == []
