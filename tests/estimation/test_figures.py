"""Answers whose ladder alone is asked for, in which no operator need be named."""

import json

import pytest
from msgspec.structs import replace

from memcalc.catalog.plan import make
from memcalc.estimation.answers import Answers
from memcalc.records.model import Place
from memcalc.records.trace import NO_GRADIENT, Component, Phase
from memcalc.report import rows

LLAMA = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "vocab_size": 1000,
}
RESNET = {"model_type": "resnet", "hidden_sizes": [64, 128], "depths": [1, 1], "num_labels": 10}


@pytest.mark.parametrize("config", [LLAMA, RESNET], ids=["text", "convolutions"])
def test_the_ladder_alone_is_that_of_the_whole_answer_and_is_never_kept_as_one(config, tmp_path):
    path = tmp_path / "model.json"
    path.write_text(json.dumps(config))
    plan = make({"model": str(path), "batch": 4, "gpu": "t4"})
    quick = Answers(figures=True)
    (ladder,) = quick.predict([plan])
    (whole,) = Answers().predict([plan])
    (again,) = quick.predict([plan])
    assert (ladder.peak, ladder.context, ladder.fit) == (whole.peak, whole.context, whole.fit)
    assert again == whole
    assert whole.components[Component.WORKSPACES]


def test_managed_memory_is_said_beside_the_verdict_and_on_no_rung(small_model):
    plan = make({"model": small_model, "batch": 4, "seq": 64, "gpu": "t4", "optim": "paged_adamw"})
    answers = Answers()
    found = answers.trace(plan).prediction
    assert found.optimizer_state.total(Place.MANAGED) > 0
    assert found.peak.process_used == found.peak.reserved + found.context.likely
    assert found.fit.needed == found.peak.process_used
    assert rows.verdict(found).endswith(" managed")
    full = replace(found, fit=replace(found.fit, capacity=found.fit.needed))
    assert rows.verdict(full).endswith(" of managed memory may lie on the host")


def test_nothing_is_said_of_gradients_that_were_freed_in_backward(small_model):
    plan = make({"model": small_model, "batch": 4, "gpu": "t4", "optim_in_backward": True})
    answers = Answers()
    said = answers.trace(plan).prediction.assumptions
    assert not any(NO_GRADIENT in one for one in said)


def test_a_plans_memory_is_labelled_as_a_scripts_is(small_model):
    evaluates = make({"model": small_model, "batch": 4, "seq": 64, "eval": 1, "kv_cache": True})
    trace = Answers().trace(evaluates).trace
    cached = {one.phase for one in trace.storages if one.component is Component.KV_CACHE}
    assert cached == {Phase.EVAL}
    updates = make({"model": small_model, "batch": 4, "seq": 64, "optim_in_backward": True})
    found = Answers().trace(updates)
    # No two gradients are held together.
    assert found.prediction.gradients == max(one.bytes for one in found.trace.inventory.trainable)
    labelled = [one for one in found.trace.storages if one.component is Component.GRADIENTS]
    assert {one.phase for one in labelled} == {Phase.BACKWARD}
