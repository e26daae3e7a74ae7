"""Answers whose ladder alone is asked for, in which no operator need be named."""

import json

import pytest

from memcalc.catalog.plan import make
from memcalc.estimation.estimate import Tracer
from memcalc.records.trace import Component

pytestmark = pytest.mark.usefixtures("same_children")

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
    with Tracer(figures=True) as quick, Tracer() as full:
        (ladder,) = quick.answers([plan])
        (whole,) = full.answers([plan])
        (again,) = quick.answers([plan])
    assert (ladder.peak, ladder.context, ladder.fit) == (whole.peak, whole.context, whole.fit)
    assert again == whole
    assert whole.components[Component.WORKSPACES]
