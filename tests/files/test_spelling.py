"""Files of an earlier memcalc are read: components of quantized weights had another spelling."""

import json

from memcalc.budgets.read import read as read_budgets
from memcalc.files import artifact
from memcalc.files.artifact import decode
from memcalc.records.trace import Component


def test_a_file_of_schema_1_has_the_components_of_today(tmp_path):
    components = {"quantised_weights": 3, "quantisation_constants": 1, "weights": 2}
    shown = {"schema": 1, "components": components, "held": [{"component": "quantised_weights"}]}
    (tmp_path / "old.json").write_text(json.dumps(shown))
    data = artifact.read(tmp_path / "old.json")
    now = {"quantized_weights": 3, "quantization_constants": 1, "weights": 2}
    assert (data["components"], data["held"]) == (now, [{"component": "quantized_weights"}])
    assert decode(dict[Component, int], components) == decode(dict[Component, int], now)


def test_a_budget_by_the_earlier_spelling_holds(tmp_path):
    path = tmp_path / "memcalc.toml"
    path.write_text("[runs.a]\nmodel = 'gpt2'\n[runs.a.limits]\nquantised-weights = '9 GiB'\n")
    (run,) = read_budgets(path).runs
    assert [one.metric for one in run.budgets] == ["quantized_weights"]
