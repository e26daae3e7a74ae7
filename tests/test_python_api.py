"""What a notebook's user types, sees and reads."""

import inspect

import pytest

import memcalc
from memcalc.advice.explain.explain import explain
from memcalc.catalog.plan import make
from memcalc.errors import UsageError
from memcalc.records.fields import FIELDS
from memcalc.records.plan import Plan


@pytest.mark.parametrize("name", ["estimate", "explain", "fit", "suggest"])
def test_keywords_are_named_and_typed_for_whoever_completes_them(name):
    parameters = inspect.signature(getattr(memcalc, name)).parameters
    assert parameters["batch"].annotation == FIELDS["batch"].type
    assert parameters["precision"].default == "fp32"
    assert {"gpu", "optim", "lora", "seq", "use_cache"} <= parameters.keys()
    assert "settings" not in parameters


def test_a_plan_may_stand_in_place_of_a_model_and_settings_change_it():
    plan = memcalc.Plan(model="gpt2", batch=2, optim="sgd")
    assert memcalc.Plan is Plan
    assert make({"model": plan, "batch": 4}) == make({"model": "gpt2", "batch": 4, "optim": "sgd"})
    found = memcalc.estimate(plan, method="analytic")
    assert found.plan == plan
    with pytest.raises(UsageError, match="batch"):
        memcalc.estimate(Plan(model="gpt2", batch=-1), method="analytic")


def test_a_mistake_in_a_notebook_is_one_sentence():
    with pytest.raises(memcalc.errors.MemcalcError) as caught:
        explain("gpt2", optim="no-such-optimizer")
    (line,) = caught.value._render_traceback_()
    assert line.startswith(("UsageError: ", "SettingError: "))
    assert "no-such-optimizer" in line
