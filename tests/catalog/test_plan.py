"""Settings become a plan or one sentence."""

import json

import pytest

from memcalc.catalog.plan import make
from memcalc.errors import UsageError
from memcalc.files import artifact
from memcalc.records.plan import Plan
from memcalc.records.prediction import Peak
from memcalc.records.trace import Phase


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "Which model"),
        ({"model": "gpt2", "batsh": 3}, "did you mean batch"),
        ({"model": "gpt2", "batch": 0}, "batch = 0"),
        ({"model": "gpt2", "batch": True}, "batch = True"),
        ({"model": "gpt2", "batch": 10**30}, "whole number"),
        ({"model": "gpt2", "precision": "fp31"}, "did you mean fp32"),
        ({"model": "gpt2", "max_grad_norm": float("nan")}, "number above 0"),
        ({"model": "gpt2", "checkpointing": "yes"}, "true or false"),
        ({"model": 7}, "not the name of a model"),
    ],
)
def test_a_bad_setting_is_named(settings, words):
    with pytest.raises(UsageError, match=words):
        make(settings)


def test_a_footprint_out_of_ladder_order_cannot_be_made():
    with pytest.raises(ValueError, match="ladder"):
        Peak(phase=Phase.STEP, requested=10, allocated=5, reserved=None, process_used=None)


def test_a_plan_survives_the_trip_through_json():
    plan = make({"model": "gpt2", "optim_args": {"foreach": False}, "freeze": ["a*"], "seq": 9})
    assert artifact.decode(Plan, json.loads(json.dumps(artifact.encode(plan)))) == plan


def test_a_file_of_a_later_version_with_more_keys_can_be_read():
    data = {**artifact.encode(Plan(model="gpt2")), "new_key": 1}
    assert artifact.decode(Plan, data) == Plan(model="gpt2")


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    with pytest.raises(UsageError, match="Cannot write"):
        artifact.write(tmp_path / "missing" / "x.json", "text")
    artifact.write(tmp_path / "x.json", "text")
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]


@pytest.mark.parametrize(
    "against", [{"grad_accum": 2}, {"max_grad_norm": 1.0}, {"precision": "amp-fp16"}]
)
def test_updates_in_backward_are_refused_where_pytorch_cannot_do_them(against):
    with pytest.raises(UsageError, match="optim_in_backward"):
        make({"model": "gpt2", "optim_in_backward": True, **against})


@pytest.mark.parametrize(
    ("settings", "optim"),
    [
        ({}, "adamw"),
        ({"loop": "trainer"}, "adamw_torch_fused"),
        ({"loop": "trainer", "optim": "adamw"}, "adamw"),
        ({"loop": "trainer", "preset": "qlora"}, "paged_adamw_8bit"),
        ({"loop": "accelerate"}, "adamw"),
    ],
)
def test_without_a_name_the_optimizer_is_that_of_the_loop(settings, optim):
    assert make({"model": "gpt2", **settings}).optim == optim
